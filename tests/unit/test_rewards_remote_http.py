"""remote_http: against a real service that is sound, busy, dead, slow or talks nonsense."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from attrs import evolve
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rolecall.api import (
    DeadlineError,
    ModelUnavailableError,
    NamedReward,
    ScoringError,
    UpstreamError,
    UpstreamStatusError,
    score_with_policy,
)
from rolecall.testing.asgi_server import serving
from rolecall.testing.engine_server import Death, EngineServer
from rolecall.testing.samples import make_samples
from rolecall_plugins.rewards.remote_http.adapter import RemoteHTTP, RemoteHTTPOptions
from rolecall_plugins.rewards.remote_http.circuit import Circuit, State

SAMPLE = make_samples()[1]


class Service:
    """Answers what its list says, the last of it for ever; remembers what it was asked."""

    def __init__(self) -> None:
        self.answers: list[Any] = [{"reward": 0.5}]
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.times_s: list[float] = []
        self.at_work = self.most_at_work = 0
        self.app = Starlette(routes=[Route("/score", self.score, methods=["POST"])])
        self.url = ""

    async def score(self, request: Request) -> Response:
        self.asked.append(await request.json())
        self.headers.append(dict(request.headers))
        self.times_s.append(asyncio.get_running_loop().time())
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        try:
            if asyncio.iscoroutinefunction(answer):
                answer = await answer()
        finally:
            self.at_work -= 1
        return answer if isinstance(answer, Response) else JSONResponse(answer)

    def adapter(self, **options: Any) -> RemoteHTTP:
        return RemoteHTTP(RemoteHTTPOptions(url=f"{self.url}/score", **options))


@pytest.fixture
async def service() -> AsyncGenerator[Service]:
    made = Service()
    async with serving(made.app) as made.url:
        yield made


def busy(status: int = 503, retry_after: str | None = "0") -> Response:
    headers = {} if retry_after is None else {"retry-after": retry_after}
    return Response(status_code=status, headers=headers)


async def never() -> Any:
    await asyncio.Event().wait()


async def test_a_sample_is_posted_and_the_reward_comes_back(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", "secret")
    service.answers = [{"result": {"reward": 2}}]
    adapter = service.adapter(
        token_env="SERVICE_TOKEN", result="result.reward", metadata=("level",), extra={"kind": "strict"}
    )
    assert await adapter.score(SAMPLE, None) == 2.0
    assert service.asked == [
        {
            "sample_id": "prompt-0/1",
            "group_id": "prompt-0",
            "prompt": "What is 2 + 2?",
            "answer": "4",
            "data_source": "sums",
            "response": "The answer is 4.",
            "response_tokens": 4,
            "finish_reason": "stop",
            "metadata": {"level": 0},
            "extra": {"kind": "strict"},
        }
    ]
    assert service.headers[0]["authorization"] == "Bearer secret"
    assert service.headers[0]["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        ({"reward": None}, ValueError, "reward must be a number, found None"),
        ({"reward": True}, ValueError, "reward must be a number, found True"),
        ({"reward": "1"}, ValueError, "reward must be a number, found '1'"),
        ({}, ValueError, "has no field reward"),
        ([], ValueError, "has no field reward"),
        (Response(b'{"reward": NaN}'), ValueError, "must be a finite number, found nan"),
        (Response(b'{"reward": 1e999}'), ValueError, "must be a finite number, found inf"),
        (Response(b'{"reward": ' + b"9" * 400 + b"}"), ValueError, "too large"),
        (Response(b"0"), ValueError, "has no field reward"),
        (Response(b""), UpstreamError, "no JSON"),
        (Response(b"<html>"), UpstreamError, "no JSON"),
        (Response(b" " * 2**21), UpstreamError, "more than"),
        (Response(b"{}", status_code=500), UpstreamStatusError, "answered 500"),
        (Response(status_code=204), UpstreamStatusError, "answered 204"),
        (Response(status_code=307, headers={"location": "/"}), UpstreamStatusError, "answered 307"),
    ],
)
async def test_an_answer_that_is_no_finite_number_is_an_error_and_asked_for_once(
    service: Service, answer: Any, error: type[Exception], message: str
) -> None:
    service.answers = [answer]
    with pytest.raises(error, match=message):
        await service.adapter(repeatable=True).score(SAMPLE, None)
    assert len(service.asked) == 1


@pytest.mark.parametrize("status", [429, 503])
async def test_an_overloaded_service_is_waited_for_by_everybody(service: Service, status: int) -> None:
    service.answers = [busy(status, "0.3"), {"reward": 1.0}]
    adapter = service.adapter(deaths=1, concurrency=1)
    assert await asyncio.gather(*(adapter.score(SAMPLE, None) for _ in range(3))) == [1.0] * 3
    assert len(service.asked) == 4
    assert service.times_s[1] - service.times_s[0] >= 0.29


async def test_a_service_that_stays_overloaded_is_an_error_and_not_dead(service: Service) -> None:
    service.answers = [busy()]
    adapter = service.adapter(overloads=2, deaths=1)
    with pytest.raises(ModelUnavailableError, match="overloaded: it answered 503 3 times"):
        await adapter.score(SAMPLE, None)
    service.answers = [{"reward": 1.0}]
    assert await adapter.score(SAMPLE, None) == 1.0


async def test_no_more_than_concurrency_at_once(service: Service) -> None:
    async def slowly() -> Any:
        await asyncio.sleep(0.02)
        return {"reward": 1.0}

    service.answers = [slowly]
    adapter = service.adapter(concurrency=3)
    await asyncio.gather(*(adapter.score(SAMPLE, None) for _ in range(12)))
    assert service.most_at_work == 3


@pytest.mark.parametrize(("death", "sent"), [(Death.RESET, 1), (Death.HALF_CLOSED, 1), (Death.HUNG, 1)])
async def test_what_may_have_been_worked_on_is_not_sent_again(
    rolecall_engine_server: EngineServer, death: Death, sent: int
) -> None:
    rolecall_engine_server.die(death)
    counted = _counting(
        RemoteHTTP(RemoteHTTPOptions(url=rolecall_engine_server.base_url, answer_s=0.3, connect_s=0.2))
    )
    with pytest.raises((UpstreamError, DeadlineError), match=r"broke off|gave no answer"):
        await counted.adapter.score(SAMPLE, None)
    assert counted.deaths() == sent


async def test_unless_it_may_be_or_nothing_was_sent(rolecall_engine_server: EngineServer) -> None:
    rolecall_engine_server.die(Death.RESET)
    url = rolecall_engine_server.base_url
    counted = _counting(RemoteHTTP(RemoteHTTPOptions(url=url, repeatable=True, deaths=9)))
    with pytest.raises(UpstreamError, match="broke off"):
        await counted.adapter.score(SAMPLE, None)
    assert counted.deaths() == 2
    rolecall_engine_server.die(Death.REFUSED)
    counted = _counting(RemoteHTTP(RemoteHTTPOptions(url=url, deaths=9)))
    with pytest.raises(UpstreamError, match="could not be reached"):
        await counted.adapter.score(SAMPLE, None)
    assert counted.deaths() == 2


class _Counted:
    def __init__(self, adapter: RemoteHTTP) -> None:
        self.adapter = adapter
        self.deaths: Callable[[], int] = lambda: (
            adapter._service().circuit._deaths  # pyright: ignore[reportPrivateUsage]
        )


def _counting(adapter: RemoteHTTP) -> _Counted:
    return _Counted(adapter)


async def test_a_dead_service_is_not_asked_until_a_probe_finds_it_alive(service: Service) -> None:
    adapter = service.adapter(deaths=2, pause_s=0.3, answer_s=0.1, connect_s=0.1)
    service.answers = [never]
    for _ in range(2):
        with pytest.raises(DeadlineError):
            await adapter.score(SAMPLE, None)
    with pytest.raises(ModelUnavailableError, match="is not asked for the next") as refused:
        await adapter.score(SAMPLE, None)
    assert 0 < refused.value.retry_after_s <= 0.3
    assert len(service.asked) == 2
    service.answers = [{"reward": 1.0}]
    retrying = NamedReward(name="r", adapter=adapter, on_error="retry", retries=3, timeout_s=5.0)
    assert await score_with_policy(SAMPLE, retrying, None) == 1.0, "the policy waits as long as it says"
    assert len(service.asked) == 3


@pytest.mark.parametrize("on_error", ["fail_batch", "drop_sample", "retry"])
async def test_a_service_that_is_killed_is_never_a_number(
    rolecall_engine_server: EngineServer, on_error: str
) -> None:
    rolecall_engine_server.die(Death.RESET)
    adapter = RemoteHTTP(RemoteHTTPOptions(url=rolecall_engine_server.base_url, pause_s=0.05))
    reward = NamedReward(name="r", adapter=adapter, on_error=on_error, retries=1, timeout_s=5.0)
    if on_error == "drop_sample":
        assert await score_with_policy(SAMPLE, reward, None) is None
        return
    with pytest.raises(ScoringError, match="broke off"):
        await score_with_policy(SAMPLE, reward, None)


async def test_a_sample_with_a_lone_surrogate_is_sent(service: Service) -> None:
    await service.adapter().score(evolve(SAMPLE, response="\ud800"), None)
    assert json.dumps(service.asked[0]["response"]) == '"\\ud800"'


async def test_metadata_that_is_missing_is_an_error(service: Service) -> None:
    with pytest.raises(ValueError, match='prompt "prompt-0" has no metadata tests'):
        await service.adapter(metadata=("tests",)).score(SAMPLE, None)


# --- the circuit ----------------------------------------------------------------------------


def test_deaths_in_a_row_open_it_and_pauses_grow() -> None:
    circuit = Circuit(deaths=2, pause_s=1.0)
    circuit.died(0.0)
    circuit.answered()
    circuit.died(0.0)
    assert circuit.admits(0.0), "one in a row"
    circuit.died(0.0)
    assert circuit.state is State.OPEN
    assert not circuit.admits(0.9)
    assert circuit.admits(1.0), "the probe"
    assert not circuit.admits(1.0), "one probe only"
    circuit.died(1.0)
    assert circuit.open_for_s(1.0) == 2.0
    assert circuit.admits(3.0)
    circuit.unknown(3.0)
    assert circuit.admits(3.0), "a probe whose caller left is followed by another"
    circuit.answered()
    assert circuit.state is State.CLOSED
    for _ in range(2):
        circuit.died(9.0)
    assert circuit.open_for_s(9.0) == 1.0, "once alive, pauses begin anew"


def test_overload_is_no_death() -> None:
    circuit = Circuit(deaths=1, pause_s=1.0)
    circuit.overloaded(0.0, 5.0)
    circuit.overloaded(0.0, 2.0)
    assert circuit.wait_s(1.0) == 4.0
    assert circuit.admits(5.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "service"}, "url must be"),
        ({"url": "http://user:word@host/"}, "without a password"),
        ({"url": "http://host", "token_env": "NO_SUCH_VARIABLE"}, "which is not set"),
        ({"url": "http://host", "concurrency": 0}, "concurrency"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RemoteHTTPOptions(**options)
