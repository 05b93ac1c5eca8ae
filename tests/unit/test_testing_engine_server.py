"""The kit's engine server: it answers as told on a real socket, and dies in each way."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from rolecall.api import EngineError
from rolecall.testing.engine_server import Death, EngineServer
from rolecall.testing.scripted_answers import VOCABULARY, tokens_of
from rolecall.testing.scripted_engine import Answer
from rolecall_plugins.engines.http_control import SglangControl

ASKED = {"input_ids": [1, 2, 3], "sampling_params": {"temperature": 0, "max_new_tokens": 8}}
SCORED = ASKED | {"return_logprob": True, "logprob_start_len": 0}


@pytest.fixture
def http(rolecall_engine_server: EngineServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=rolecall_engine_server.base_url, timeout=10, trust_env=False) as client:
        yield client


def generate(http: httpx.Client, **payload: Any) -> dict[str, Any]:
    response = http.post("/generate", json=ASKED | payload)
    assert response.status_code == 200, response.text
    return response.json()


def log_probs(http: httpx.Client) -> list[float]:
    entries = generate(http, **SCORED)["meta_info"]["input_token_logprobs"]
    assert entries[0] == [None, 1, None]
    return [entry[0] for entry in entries[1:]]


def events(response: httpx.Response) -> list[Any]:
    return [json.loads(line[6:]) for line in response.text.splitlines() if line and "[DONE]" not in line]


class Asking(threading.Thread):
    """A caller that waits for its answer elsewhere."""

    def __init__(self, http: httpx.Client, payload: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self._ask = lambda: http.post("/generate", json=payload)
        self.answer: httpx.Response | None = None
        self.start()

    def run(self) -> None:
        self.answer = self._ask()

    def done(self) -> dict[str, Any]:
        self.join(10)
        assert self.answer is not None
        return self.answer.json()


def test_unary_and_stream_say_the_same(http: httpx.Client, rolecall_engine_server: EngineServer) -> None:
    whole = generate(http)
    assert whole["output_ids"] == tokens_of([1, 2, 3], 4)
    stream = http.post("/generate", json=ASKED | {"stream": True})
    assert stream.text.endswith("data: [DONE]\n\n")
    assert [event["output_ids"] for event in events(stream)] == [whole["output_ids"][:n] for n in range(1, 5)]
    assert events(stream)[-1]["meta_info"]["finish_reason"] == whole["meta_info"]["finish_reason"]
    assert [received.payload.get("stream") for received in rolecall_engine_server.received] == [None, True]


def test_a_requests_limit_is_kept(http: httpx.Client) -> None:
    answer = generate(http, sampling_params={"max_new_tokens": 2})
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 2}
    assert answer["meta_info"]["completion_tokens"] == len(answer["output_ids"]) == 2
    scored = generate(http, **SCORED | {"sampling_params": {"max_new_tokens": 0}}, top_logprobs_num=3)
    assert scored["output_ids"] == []
    assert [len(top or ()) for top in scored["meta_info"]["input_top_logprobs"]] == [0, 3, 3]


def test_slow(http: httpx.Client, rolecall_engine_server: EngineServer) -> None:
    rolecall_engine_server.behaviour.delay_s = 30
    with pytest.raises(httpx.ReadTimeout):
        http.get("/health", timeout=0.1)


def test_stuck_until_it_is_aborted(http: httpx.Client, rolecall_engine_server: EngineServer) -> None:
    rolecall_engine_server.behaviour.stuck = True
    asking = Asking(http, ASKED | {"rid": "one"})
    rolecall_engine_server.until_running(1)
    assert http.post("/flush_cache").status_code == 400
    assert http.get("/v1/loads").json()["loads"][0]["num_running_reqs"] == 1
    http.post("/abort_request", json={"rid": "one"})
    rolecall_engine_server.until_aborted()
    assert asking.done()["meta_info"]["finish_reason"]["type"] == "abort"
    rolecall_engine_server.until_running(0)
    assert http.post("/flush_cache").status_code == 200
    with pytest.raises(TimeoutError):
        rolecall_engine_server.until_running(1, timeout_s=0.05)


def test_a_stream_waits_when_it_is_held(http: httpx.Client, rolecall_engine_server: EngineServer) -> None:
    rolecall_engine_server.hold()
    with http.stream("POST", "/generate", json=ASKED | {"stream": True}) as response:
        lines = response.iter_lines()
        assert json.loads(next(lines)[6:])["output_ids"] == tokens_of([1, 2, 3], 1)
        assert list(rolecall_engine_server.engine.running)
        rolecall_engine_server.let_go()
        assert list(lines)[-2] == "data: [DONE]"


def test_a_pause_aborts_what_runs_and_keeps_what_comes(
    http: httpx.Client, rolecall_engine_server: EngineServer
) -> None:
    rolecall_engine_server.behaviour.stuck = True
    old = Asking(http, ASKED)
    rolecall_engine_server.until_running(1)
    http.post("/pause_generation", json={"mode": "abort"})
    assert old.done()["meta_info"]["finish_reason"]["type"] == "abort"
    rolecall_engine_server.behaviour.stuck = False
    new = Asking(http, ASKED)
    new.join(0.1)
    assert new.is_alive()
    http.post("/continue_generation", json={})
    assert new.done()["output_ids"] == tokens_of([1, 2, 3], 4)


def test_wrong_status_body_and_counts(http: httpx.Client, rolecall_engine_server: EngineServer) -> None:
    behaviour = rolecall_engine_server.behaviour
    behaviour.counted_wrong = -1
    answer = generate(http)
    assert answer["meta_info"]["completion_tokens"] == len(answer["output_ids"]) - 1
    behaviour.status, behaviour.body, behaviour.content_type = 422, b"<html>", "text/html"
    assert (http.post("/generate", json=ASKED).status_code, http.get("/health").status_code) == (422, 200)
    behaviour.answers["/health"] = Answer(status=500, body=b"no")
    assert http.get("/health").text == "no"


@pytest.mark.parametrize("rest", [b"", b"data: {not json\n\n", b"data: [DONE]\n\n"])
def test_a_stream_that_goes_wrong(
    http: httpx.Client, rolecall_engine_server: EngineServer, rest: bytes
) -> None:
    rolecall_engine_server.behaviour.rest_of_stream = rest
    content = http.post("/generate", json=ASKED | {"stream": True}).content
    first, separator, others = content.partition(b"\n\n")
    assert json.loads(first[6:])["output_ids"]
    assert (separator, others) == (b"\n\n", rest)


def test_weights_are_updated_and_lost(http: httpx.Client, rolecall_engine_server: EngineServer) -> None:
    before = log_probs(http)
    assert log_probs(http) == before
    assert len(set(before)) == 2
    update = {"model_path": "/other", "weight_version": "7"}
    assert http.post("/update_weights_from_disk", json=update).json()["success"] is True
    assert http.get("/model_info").json()["weight_version"] == "7"
    assert generate(http)["meta_info"]["weight_version"] == "7"
    assert log_probs(http) != before
    rolecall_engine_server.behaviour.loses_weights = True
    http.post("/release_memory_occupation", json={"tags": ["weights"]})
    http.post("/resume_memory_occupation", json={"tags": ["weights"]})
    assert log_probs(http) == [pytest.approx(-math.log(VOCABULARY))] * 2
    assert http.get("/model_info").json()["weight_version"] == "7", "the version says nothing of it"


def test_a_release_frees_or_only_says_so(http: httpx.Client, rolecall_engine_server: EngineServer) -> None:
    engine = rolecall_engine_server.engine
    held = engine.resident_bytes
    assert http.post("/release_memory_occupation", json={"tags": ["kv_cache"]}).json() is None
    assert 0 < engine.resident_bytes < held
    http.post("/resume_memory_occupation", json={"tags": ["kv_cache"]})
    rolecall_engine_server.behaviour.lies_about_release = True
    assert http.post("/release_memory_occupation", json={}).status_code == 200
    assert engine.resident_bytes == held
    assert engine.crashed is None


@pytest.mark.parametrize(
    ("calls", "reason"),
    [
        (["release", "release"], "it released what was released"),
        (["resume"], "it resumed what was resident"),
        (["release", "generate"], "it generated without its memory"),
    ],
)
def test_what_ends_sglangs_scheduler_ends_this_one(
    http: httpx.Client, rolecall_engine_server: EngineServer, calls: list[str], reason: str
) -> None:
    for call in calls[:-1]:
        http.post(f"/{call}_memory_occupation", json={})
    assert rolecall_engine_server.engine.crashed is None
    if calls[-1] == "generate":
        with pytest.raises(httpx.ReadTimeout):
            http.post("/generate", json=ASKED, timeout=0.2)
    else:
        http.post(f"/{calls[-1]}_memory_occupation", json={})
    assert rolecall_engine_server.engine.crashed == reason
    assert http.get("/health").status_code == 200, "its server does not notice"
    assert http.get("/health_generate").status_code == 503


@pytest.mark.parametrize(
    ("death", "error"),
    [
        (Death.REFUSED, httpx.ConnectError),
        (Death.RESET, httpx.ReadError),
        (Death.HALF_CLOSED, httpx.RemoteProtocolError),
        (Death.HUNG, httpx.ReadTimeout),
    ],
)
def test_dead_and_alive_again_at_the_same_address(
    http: httpx.Client, rolecall_engine_server: EngineServer, death: Death, error: type[Exception]
) -> None:
    """Also for a request under way: its connection is cut."""
    address = rolecall_engine_server.base_url
    rolecall_engine_server.hold()
    with http.stream("POST", "/generate", json=ASKED | {"stream": True}) as response:
        lines = response.iter_lines()
        next(lines)
        rolecall_engine_server.die(death)
        with pytest.raises(httpx.TransportError):
            list(lines)
    for _ in range(2):
        with pytest.raises(error):
            http.get("/health", timeout=0.3)
    rolecall_engine_server.live()
    rolecall_engine_server.live()
    assert rolecall_engine_server.base_url == address
    assert http.get("/health").status_code == 200


async def test_the_sglang_backends_own_client_understands_it(rolecall_engine_server: EngineServer) -> None:
    """All control calls of the first-party backend, from a test with an event loop."""
    control = SglangControl(rolecall_engine_server.base_url)
    try:
        assert (await control.health(generate=True, timeout_s=5)).alive
        assert await control.running_requests() == 0
        await control.pause()
        await control.abort_all()
        assert await control.flush()
        await control.continue_generation()
        await control.update_weights_from_tensors(["x"], weight_version="8")
        assert (await control.model_info())["weight_version"] == "8"
        with pytest.raises(EngineError, match="does not exist"):
            await control.leave_weights_group("nobody's")
        assert (await control.generate(ASKED, timeout_s=5))["output_ids"]
    finally:
        await control.close()
    assert [call.path for call in rolecall_engine_server.engine.calls][:3] == [
        "/health_generate",
        "/v1/loads",
        "/pause_generation",
    ]
