"""External teachers over real sockets: who is asked what, and that none is asked before it is known."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import numpy as np
import pytest
from attrs import evolve
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rolecall.api import (
    DeadlineError,
    ModelUnavailableError,
    Prompt,
    RequestError,
    RoleName,
    Sample,
    ScoringError,
    StageContext,
    StageRequest,
    UpstreamError,
    UpstreamStatusError,
    WeightSource,
)
from rolecall.batches.validation import check_scores
from rolecall.config.structure import StructureError, structure
from rolecall.engines.replica_state import ReplicaState
from rolecall.testing.asgi_server import serving
from rolecall.testing.plain_role import PlainRole
from rolecall.testing.plane import Plane, plane
from rolecall.testing.scripted_answers import Weights
from rolecall.testing.scripted_engine import Answer, ScriptedEngine
from rolecall_roles.teacher import get_urls
from rolecall_roles.teacher.options import TeacherOptions
from rolecall_roles.teacher.role import TeacherRole
from rolecall_routing.affinity import Affinity

PATH = "/models/strong"
VOCABULARY = 151_936


def sample(group: str, index: int = 0, source: str | None = None, **metadata: Any) -> Sample:
    return Sample(
        sample_id=f"{group}/{index}",
        group_id=group,
        prompt=Prompt(prompt_id=group, text="?", data_source=source, metadata=metadata),
        prompt_ids=(10, 11, 12),
        response="yes",
        response_ids=(20, 21),
        rollout_log_probs=(-0.1, -0.2),
        finish_reason="stop",
        weight_version=None,
    )


def strong(path: str = PATH, size: int | None = VOCABULARY) -> ScriptedEngine:
    engine = ScriptedEngine(weights=Weights(path=path))
    info = {"model_path": path} | ({} if size is None else {"vocab_size": size})
    engine.behaviour.answers["/model_info"] = Answer(body=json.dumps(info).encode())
    return engine


@asynccontextmanager
async def served(*engines: ScriptedEngine) -> AsyncGenerator[list[str]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(serving(engine.app)) for engine in engines]


def options(external: Mapping[str, Mapping[str, Any]], **more: Any) -> TeacherOptions:
    tables = {
        name: {"model_path": PATH, "vocabulary_size": VOCABULARY, **table} for name, table in external.items()
    }
    return structure(TeacherOptions, {"top_k": 0, "external": tables, **more})


class OwnModels:
    """The job's own teacher: everything has the log-probability -1."""

    def __init__(self) -> None:
        self.selectors: list[dict[str, Any]] = []

    async def generate(self, payload: Mapping[str, Any], **selectors: Any) -> dict[str, Any]:
        self.selectors.append(selectors)
        reported = payload["input_ids"][payload["logprob_start_len"] :]
        entries = [[None if n == 0 else -n, token, None] for n, token in enumerate(reported)]
        return {"meta_info": {"input_token_logprobs": entries}}

    async def chat(self, messages: Any, **_: Any) -> str:
        raise AssertionError("the teacher sends raw payloads")


async def score(
    teacher: TeacherOptions,
    samples: Sequence[Sample],
    client: OwnModels | None = None,
    *,
    route_keys: Sequence[str] = (),
) -> Any:
    request = StageRequest(
        route_keys=frozenset(route_keys), models={} if client is None else {"own": WeightSource.STATIC}
    )
    (stage,) = TeacherRole(teacher).scoring_stages(request)
    assert stage.role == (None if client is None else "teacher")
    scores = await stage.run(
        samples, StageContext(client=client, max_concurrency=4, progress=lambda *_: None)
    )
    check_scores(stage, samples, scores)
    return scores


def expected(engine: ScriptedEngine) -> list[np.float32]:
    return [np.float32(engine.weights.log_prob(3 + place, token)) for place, token in enumerate((20, 21))]


# --- who is asked -------------------------------------------------------------------------


async def test_a_job_without_teachers_of_its_own_asks_the_external_one() -> None:
    async with served(engine := strong()) as urls:
        scores = await score(options({"far": {"urls": urls}}), [sample("a"), sample("b")])
    for name in ("a/0", "b/0"):
        assert scores[name]["teacher_log_probs"].tolist() == expected(engine)
    sent = engine.received[0].payload
    assert (sent["input_ids"], sent["logprob_start_len"]) == ([10, 11, 12, 20, 21], 2)


async def test_several_teachers_are_told_apart_by_route_key() -> None:
    maths, code, rest, own = strong(), strong(), strong(), OwnModels()
    async with served(maths, code, rest) as (maths_url, code_url, rest_url):
        teachers = options(
            {
                "maths": {"urls": [maths_url], "route_keys": ["sums", "proofs"]},
                "code": {"urls": [code_url], "route_keys": ["code"]},
                "rest": {"urls": [rest_url]},
            }
        )
        wanted = ["sums", "proofs", "code", "own", None, "unheard of"]
        samples = [sample(f"g{n}", source=source) for n, source in enumerate(wanted)]
        await score(teachers, samples, own, route_keys=["own"])
    assert [len(engine.received) for engine in (maths, code, rest)] == [2, 1, 2]
    assert [each["route_key"] for each in own.selectors] == ["own"]
    assert [each["affinity_key"] for each in own.selectors] == ["own:g3"]


async def test_what_no_route_key_names_goes_to_the_role_s_own_default() -> None:
    async with served(maths := strong()) as urls:
        teachers = options({"maths": {"urls": urls, "route_keys": ["sums"]}}, route_by="metadata.kind")
        own = OwnModels()
        await score(teachers, [sample("a", kind="sums"), sample("b", kind=["sums"]), sample("c")], own)
    assert len(maths.received) == 1
    assert [each["route_key"] for each in own.selectors] == [None, None]


async def test_a_sample_that_no_teacher_takes_is_told_before_anybody_is_asked() -> None:
    async with served(engine := strong()) as urls:
        teachers = options({"maths": {"urls": urls, "route_keys": ["sums"]}})
        with pytest.raises(ScoringError, match=r'"b/0": no teacher takes its data_source .code.; .* sums'):
            await score(teachers, [sample("a", source="sums"), sample("b", source="code")])
    assert (engine.received, engine.calls) == ([], [])


def test_a_route_key_leads_to_one_teacher() -> None:
    teachers = options({"maths": {"urls": ["http://host:1"], "route_keys": ["sums"]}})
    with pytest.raises(ScoringError, match=r'"sums" leads to a model of the role and .* "maths"'):
        TeacherRole(teachers).scoring_stages(
            StageRequest(route_keys=frozenset({"sums"}), models={"own": WeightSource.STATIC})
        )


async def test_a_group_meets_one_of_several_engines_and_groups_are_spread() -> None:
    engines = [strong() for _ in range(3)]
    groups = [f"g{number}" for number in range(24)]
    async with served(*engines) as urls:
        samples = [sample(group, index) for group in groups for index in range(3)]
        await score(options({"far": {"urls": urls}}), evolved(samples))
    homes = [{json.dumps(sent.payload["input_ids"][:1]) for sent in engine.received} for engine in engines]
    assert all(homes)
    assert sum(map(len, homes)) == len(groups), "a group met two engines"


def evolved(samples: Sequence[Sample]) -> list[Sample]:
    """Give each group a first token of its own, by which its requests are known."""
    numbers = {group: number for number, group in enumerate(dict.fromkeys(one.group_id for one in samples))}
    return [evolve(one, prompt_ids=(1000 + numbers[one.group_id], 11, 12)) for one in samples]


@pytest.mark.parametrize("by_gateway", [False, True])
async def test_group_affinity_holds_where_the_role_routes_by_key(by_gateway: bool) -> None:
    """Through a gateway's discovery and a real client: route key and group together have one home."""
    async with gateway_of(3) as running:
        table = {"gateway": running.url} if by_gateway else {"urls": running.urls}
        samples = evolved([sample(f"g{n}", index) for n in range(12) for index in range(3)])
        await score(options({"far": table}), samples)
    homes = [{sent.payload["input_ids"][0] for sent in engine.received} for engine in running.engines]
    assert sum(map(len, homes)) == 12
    assert sum(len(engine.received) for engine in running.engines) == 36


@asynccontextmanager
async def gateway_of(engines: int, **routing: Any) -> AsyncGenerator[Plane]:
    """Another job's teacher role: engines with the right model behind a gateway."""
    role = PlainRole(name=RoleName("teacher"), plugin=TeacherRole(TeacherOptions()), policy=Affinity)
    async with plane(role, engines=engines) as running:
        for engine in running.engines:
            engine.behaviour.answers |= strong().behaviour.answers
        running.publish(default_model="m", **routing)
        yield running


# --- who it is ----------------------------------------------------------------------------


async def refused(teachers: TeacherOptions, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message) as found:
        await score(teachers, [sample("a")])
    assert 'external teacher "far"' in str(found.value)


async def test_another_model_is_refused_before_it_is_asked() -> None:
    async with served(engine := strong("/models/student")) as urls:
        await refused(
            options({"far": {"urls": urls}}),
            ScoringError,
            "has the model '/models/student', not '/models/strong'",
        )
    assert engine.received == []


async def test_another_vocabulary_is_refused_before_it_is_asked() -> None:
    async with served(engine := strong(size=32_000)) as urls:
        await refused(options({"far": {"urls": urls}}), ScoringError, "a vocabulary of 32000, not of 151936")
    assert engine.received == []


async def test_every_engine_of_a_teacher_is_looked_at() -> None:
    engines = strong(), strong(), strong("/models/old")
    async with served(*engines) as urls:
        await refused(options({"far": {"urls": urls}}), ScoringError, "'/models/old'")
    assert [engine.received for engine in engines] == [[], [], []]


async def test_every_engine_behind_a_gateway_is_looked_at() -> None:
    async with gateway_of(2) as running:
        running.engines[1].behaviour.answers |= strong("/models/old").behaviour.answers
        await refused(options({"far": {"gateway": running.url}}), ScoringError, "'/models/old'")
        assert [engine.received for engine in running.engines] == [[], []]


async def test_a_teacher_that_changed_between_two_batches_is_noticed() -> None:
    async with served(engine := strong()) as urls:
        teachers = options({"far": {"urls": urls}})
        await score(teachers, [sample("a")])
        engine.behaviour.answers |= strong("/models/other").behaviour.answers
        await refused(teachers, ScoringError, "'/models/other'")
    assert len(engine.received) == 1


def engine_without_vocabulary(size: int) -> tuple[Starlette, list[Any]]:
    """Reports no vocabulary, and takes a bias for its tokens only, as SGLang does."""
    asked: list[Any] = []

    async def info(request: Request) -> Response:
        del request
        return JSONResponse({"model_path": PATH})

    async def generate(request: Request) -> Response:
        payload = await request.json()
        asked.append(payload)
        bias = payload["sampling_params"].get("logit_bias", {})
        if any(not 0 <= int(token) < size for token in bias):
            return JSONResponse({"error": {"message": "logit_bias"}}, status_code=400)
        return JSONResponse(await OwnModels().generate({"logprob_start_len": 0, **payload}))

    routes = [Route("/get_model_info", info), Route("/generate", generate, methods=["POST"])]
    return Starlette(routes=routes), asked


async def test_a_vocabulary_that_is_not_reported_is_found_out_by_what_is_taken() -> None:
    app, asked = engine_without_vocabulary(VOCABULARY)
    async with serving(app) as url:
        await score(options({"far": {"urls": [url]}}), [sample("a")])
    biases = [list(sent["sampling_params"].get("logit_bias", ())) for sent in asked]
    assert biases == [["151935"], ["151936"], []]


@pytest.mark.parametrize(("size", "word"), [(VOCABULARY - 1, "smaller"), (VOCABULARY + 1, "larger")])
async def test_a_vocabulary_that_is_not_reported_is_told_apart_by_one(size: int, word: str) -> None:
    app, asked = engine_without_vocabulary(size)
    async with serving(app) as url:
        await refused(
            options({"far": {"urls": [url]}}), ScoringError, f"it is {word} than the expected 151936"
        )
    assert all("logit_bias" in sent["sampling_params"] for sent in asked), "a sample was sent"


# --- what goes wrong ----------------------------------------------------------------------


async def test_a_teacher_that_is_not_there_is_an_error() -> None:
    async with served(strong()) as urls:
        pass
    await refused(options({"far": {"urls": urls}}), UpstreamError, "could not be asked")


@pytest.mark.parametrize("answer", [Answer(body=b"<html>"), Answer(body=b"[1]"), Answer(status=500)])
async def test_an_engine_that_does_not_say_who_it_is_is_an_error(answer: Answer) -> None:
    async with served(engine := strong()) as urls:
        engine.behaviour.answers["/model_info"] = answer
        await refused(options({"far": {"urls": urls}}), UpstreamError, "/model_info answered")


async def test_a_teacher_that_fails_is_an_error_and_is_asked_once() -> None:
    async with served(engine := strong()) as urls:
        engine.behaviour.status, engine.behaviour.body = 503, b"busy"
        with pytest.raises(UpstreamStatusError, match="answered 503: busy"):
            await score(options({"far": {"urls": urls}}), [sample("a")])
    assert len(engine.received) == 1


async def test_a_teacher_that_is_silent_is_an_error_in_time() -> None:
    async with served(engine := strong()) as urls:
        engine.behaviour.stuck = engine.behaviour.notices_cuts = True
        with pytest.raises(DeadlineError, match=r"gave no answer within 0\.2 s"):
            await score(options({"far": {"urls": urls}}, timeout_s=0.2), [sample("a")])


async def test_a_batch_that_is_given_up_leaves_no_request_at_a_teacher() -> None:
    async with served(engine := strong()) as urls:
        engine.behaviour.stuck = engine.behaviour.notices_cuts = True
        samples = [sample(f"g{number}") for number in range(3)]
        scoring = asyncio.create_task(score(options({"far": {"urls": urls}}), samples))
        async with asyncio.timeout(20):
            await engine.until_running(3)
            scoring.cancel()
            await asyncio.wait({scoring})
            await engine.until_running(0)
    assert scoring.cancelled()
    assert len(engine.cuts) == 3


async def test_lost_weights_of_an_external_teacher_are_refused() -> None:
    async with served(engine := strong()) as urls:
        engine.weights = Weights(path=PATH, lost=True)
        with pytest.raises(ScoringError, match="lost its weights"):
            await score(options({"far": {"urls": urls}}), [sample("a")])


@pytest.mark.parametrize(
    ("table", "kind", "message"),
    [
        ({"model": "nobody"}, UpstreamError, r"has no model .nobody.; it has: m"),
        ({"model": "m"}, RequestError, "no engine of 'm'|asleep|READY"),
    ],
)
async def test_a_gateway_without_the_model_is_an_error(
    table: dict[str, Any], kind: type[Exception], message: str
) -> None:
    async with gateway_of(1) as running:
        running.publish(ReplicaState.FAILED, default_model="m")
        await refused(options({"far": {"gateway": running.url, **table}}), kind, message)


async def test_a_gateway_that_is_none_is_an_error() -> None:
    async with served(strong()) as (url,):
        await refused(options({"far": {"gateway": url}}), UpstreamError, "/engines answered 404")


async def test_a_gateway_s_model_that_sleeps_is_unavailable() -> None:
    async with gateway_of(1) as running:
        running.publish(ReplicaState.SLEEPING, default_model="m")
        with pytest.raises(ModelUnavailableError):
            await score(options({"far": {"gateway": running.url}}), [sample("a")])


async def test_a_token_is_sent_with_everything_and_kept_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEACHER_TOKEN", "secret")
    async with served(engine := strong()) as urls:
        teachers = options({"far": {"urls": urls, "token_env": "TEACHER_TOKEN"}})
        await score(teachers, [sample("a")])
    assert {call.headers["authorization"] for call in (*engine.calls, *engine.received)} == {"Bearer secret"}
    assert "secret" not in repr(teachers)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "urls or gateway must say where the teacher is, found neither"),
        ({"urls": ["http://a:1"], "gateway": "http://b:1/teacher"}, "found both"),
        ({"urls": ["http://a:1"], "model": "m"}, "model chooses among a gateway's models"),
        ({"urls": ["a:1"]}, "urls must be"),
        ({"urls": ["http://user:secret@a:1"]}, "urls must be"),
        ({"urls": ["http://a:1/"]}, "urls must be"),
        ({"urls": ["http://a:1", "http://a:1"]}, "urls names one twice"),
        ({"gateway": "ftp://a/teacher"}, "gateway must be"),
        ({"urls": ["http://a:1"], "vocabulary_size": 1}, "must be greater than 1, found 1"),
        ({"urls": ["http://a:1"], "model_path": ""}, "at least 1 character"),
        ({"urls": ["http://a:1"], "token_env": "NOBODY_SET_THIS"}, "NOBODY_SET_THIS, which is not set"),
    ],
)
def test_options_that_can_not_be_meant_are_refused(table: dict[str, Any], message: str) -> None:
    with pytest.raises(StructureError, match=message):
        options({"far": table})


def test_two_teachers_can_not_take_the_same() -> None:
    with pytest.raises(StructureError, match="'a' and 'b' both have the route key 'sums'"):
        options({name: {"urls": ["http://a:1"], "route_keys": ["sums"]} for name in "ab"})
    with pytest.raises(StructureError, match="'a' and 'b' both take what no route key names"):
        options({name: {"urls": ["http://a:1"]} for name in "ab"})


# --- get_urls -----------------------------------------------------------------------------


async def test_the_urls_are_those_of_own_and_external_engines() -> None:
    async with gateway_of(2) as far:
        external = options(
            {"a": {"urls": ["http://a:1", "http://a:2"], "route_keys": ["x"]}, "b": {"gateway": far.url}}
        )
        role = PlainRole(name=RoleName("teacher"), plugin=TeacherRole(external))
        async with plane(role, engines=1) as running:
            urls = await asyncio.to_thread(get_urls, running.url + "/")
            assert urls == [
                f"{url}/generate" for url in (*running.urls, "http://a:1", "http://a:2", *far.urls)
            ]
            async with httpx.AsyncClient(trust_env=False) as http:
                for url in urls[:1]:
                    assert (await http.post(url, json={"input_ids": [1]})).status_code == 200
            running.publish(ReplicaState.FAILED)
            assert await asyncio.to_thread(get_urls, running.url) == urls[1:]


async def test_urls_that_can_not_all_be_told_are_an_error() -> None:
    external = options({"far": {"gateway": "http://127.0.0.1:1/teacher"}})
    role = PlainRole(name=RoleName("teacher"), plugin=TeacherRole(external))
    async with plane(role) as running:
        with pytest.raises(UpstreamError, match="/urls answered 502: "):
            await asyncio.to_thread(get_urls, running.url)


def test_a_gateway_that_can_not_be_asked_for_urls_is_an_error() -> None:
    with pytest.raises(UpstreamError, match="/urls could not be asked"):
        get_urls("http://127.0.0.1:1/teacher")
