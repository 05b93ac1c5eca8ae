"""The teacher role: the request of the specification, the offsets, and every refusal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from rolecall.api import PayloadError, Prompt, Sample, ScoringError, StageContext, StageRequest
from rolecall.batches.validation import check_scores
from rolecall_roles.teacher.options import TeacherOptions
from rolecall_roles.teacher.role import TeacherRole

SAMPLE = Sample(
    sample_id="p/0",
    group_id="p",
    prompt=Prompt(prompt_id="p", text="?", data_source="sums", metadata={"level": "hard"}),
    prompt_ids=(10, 11, 12),
    response="yes",
    response_ids=(20, 21),
    rollout_log_probs=(-0.1, -0.2),
    finish_reason="stop",
    weight_version=None,
)


class Engine:
    """Answers as SGLang does: entries from ``logprob_start_len`` on, the first without a value."""

    def __init__(self, **changes: Any) -> None:
        self.changes = changes
        self.requests: list[tuple[dict[str, Any], dict[str, Any]]] = []

    async def generate(self, payload: Mapping[str, Any], **selectors: Any) -> dict[str, Any]:
        self.requests.append((dict(payload), selectors))
        start, ids = payload["logprob_start_len"], payload["input_ids"]
        asked = ids[start:]
        meta: dict[str, Any] = {
            "input_token_logprobs": [
                [None if place == 0 else -token / 10, token, None] for place, token in enumerate(asked)
            ]
        }
        if top_k := payload.get("top_logprobs_num"):
            meta["input_top_logprobs"] = [
                None if place == 0 else [[-rank - token / 100, token + rank, None] for rank in range(top_k)]
                for place, token in enumerate(asked)
            ]
        return {"text": "", "output_ids": [], "meta_info": {**meta, **self.changes}}

    async def chat(self, messages: list[dict[str, Any]], **_: Any) -> str:
        raise AssertionError("the teacher sends raw payloads")


async def score(
    engine: Engine, samples: Sequence[Sample] = (SAMPLE,), *, route_keys: Sequence[str] = (), **options: Any
) -> Any:
    role = TeacherRole(TeacherOptions(**options))
    (stage,) = role.scoring_stages(StageRequest(route_keys=frozenset(route_keys)))
    scores = await stage.run(
        samples, StageContext(client=engine, max_concurrency=4, progress=lambda *_: None)
    )
    check_scores(stage, samples, scores)
    return scores


async def test_the_request_is_the_one_of_the_specification() -> None:
    engine = Engine()
    await score(engine, top_k=4)
    assert engine.requests[0][0] == {
        "input_ids": [10, 11, 12, 20, 21],
        "sampling_params": {"temperature": 0, "max_new_tokens": 0, "skip_special_tokens": False},
        "return_logprob": True,
        "logprob_start_len": 2,
        "top_logprobs_num": 4,
    }


async def test_fields_have_the_response_s_length_and_belong_to_its_tokens() -> None:
    fields = (await score(Engine(), top_k=3))["p/0"]
    log_probs, ids, top = (fields[f"teacher_{name}"] for name in ("log_probs", "topk_ids", "topk_log_probs"))
    assert (log_probs.dtype, ids.dtype, top.dtype) == (np.float32, np.int32, np.float32)
    np.testing.assert_array_equal(log_probs, np.float32([-2.0, -2.1]))
    np.testing.assert_array_equal(ids, [[20, 21, 22], [21, 22, 23]])
    np.testing.assert_array_equal(top, np.float32([[-0.2, -1.2, -2.2], [-0.21, -1.21, -2.21]]))


async def test_eight_alternatives_are_asked_for_by_default_and_none_on_request() -> None:
    assert (await score(Engine()))["p/0"]["teacher_topk_ids"].shape == (2, 8)
    engine = Engine()
    assert list((await score(engine, top_k=0))["p/0"]) == ["teacher_log_probs"]
    assert "top_logprobs_num" not in engine.requests[0][0]


async def test_an_empty_response_and_a_prompt_of_one_token_work() -> None:
    empty = evolve(SAMPLE, response_ids=(), rollout_log_probs=())
    short = evolve(SAMPLE, sample_id="p/1", prompt_ids=(10,))
    engine = Engine()
    scores = await score(engine, [empty, short])
    assert scores["p/0"]["teacher_topk_ids"].shape == (0, 8)
    assert scores["p/1"]["teacher_log_probs"].shape == (2,)
    assert engine.requests[1][0]["logprob_start_len"] == 0


@pytest.mark.parametrize(
    ("route_keys", "options", "route_key", "affinity_key"),
    [
        ((), {}, None, "p"),
        (("other",), {}, None, "p"),
        (("sums", "other"), {}, "sums", "sums:p"),
        (("hard",), {"route_by": "metadata.level"}, "hard", "hard:p"),
        (("hard",), {"route_by": "metadata.absent"}, None, "p"),
    ],
)
async def test_only_a_configured_route_key_is_sent(
    route_keys: Sequence[str], options: dict[str, Any], route_key: str | None, affinity_key: str
) -> None:
    engine = Engine()
    await score(engine, route_keys=route_keys, **options)
    selectors = engine.requests[0][1]
    assert (selectors["route_key"], selectors["affinity_key"]) == (route_key, affinity_key)


def test_what_the_route_is_read_from_must_be_known() -> None:
    for wrong in ("source", "metadata", "metadata."):
        with pytest.raises(ValueError, match="route_by must be data_source or metadata"):
            TeacherOptions(route_by=wrong)


def entries(*values: Any, ids: Sequence[int] = (12, 20, 21)) -> list[Any]:
    return [[value, token, None] for value, token in zip(values, ids, strict=True)]


UNIFORM = -math.log(49152)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"input_token_logprobs": entries(None, -1, ids=(12, 20))},
            "answered 2 input_token_logprobs, expected 3",
        ),
        ({"input_token_logprobs": [[None, 11, None], *entries(None, -1, -2)]}, "answered 4 .* expected 3"),
        ({"input_token_logprobs": None}, "answered no input_token_logprobs, expected 3"),
        ({"input_token_logprobs": entries(None, -1, None)}, r"input_token_logprobs\[2\] has .* None"),
        (
            {"input_token_logprobs": entries(None, -1, -2, ids=(12, 20, 99))},
            r"\[2\] is about token 99, but 21 was sent there",
        ),
        (
            {"input_token_logprobs": entries(None, UNIFORM, UNIFORM)},
            "all 2 log-probabilities are -10.8.*lost its weights",
        ),
        ({"input_token_logprobs": entries(None, -1, float("nan"))}, "nan, not a finite number"),
        ({"input_token_logprobs": entries(None, -1, float("-inf"))}, "-inf, not a finite number"),
        ({"input_token_logprobs": entries(None, -1, "-2")}, "'-2', not a finite number"),
        ({"input_token_logprobs": [None, None, None]}, r"is None, not \[log-prob, id, …\]"),
        ({"input_top_logprobs": None}, "answered no input_top_logprobs"),
        ({"input_top_logprobs": [None, [[-1, 1, None]] * 8]}, "answered 2 input_top_logprobs, expected 3"),
        (
            {"input_top_logprobs": [None, [[-1, token, None] for token in range(8)], None]},
            r"input_top_logprobs\[2\] is None",
        ),
        ({"input_top_logprobs": [None, *[[[-1, 1, None]] * 7] * 2]}, "not 8 tokens"),
        ({"input_top_logprobs": [None, *[[[None, 1, None]] * 8] * 2]}, "None, not a finite number"),
        ({"input_top_logprobs": [None, *[[[-1, None, None]] * 8] * 2]}, "names no token id"),
    ],
)
async def test_an_opinion_that_can_not_be_right_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ScoringError, match=message) as refused:
        await score(Engine(**changes))
    assert str(refused.value).startswith('teacher: sample "p/0": ')


async def test_an_answer_without_meta_info_is_refused() -> None:
    engine = Engine()
    engine.generate = lambda *_, **__: _answer({"text": ""})  # type: ignore[method-assign]
    with pytest.raises(ScoringError, match="no meta_info"):
        await score(engine)


async def _answer(value: dict[str, Any]) -> dict[str, Any]:
    return value


async def test_certainty_about_a_short_answer_is_no_loss_of_weights() -> None:
    certain = Engine(input_token_logprobs=entries(None, 0.0, 0.0))
    assert (await score(certain))["p/0"]["teacher_log_probs"].tolist() == [0.0, 0.0]
    long = evolve(SAMPLE, response_ids=tuple(range(20, 25)), rollout_log_probs=(-0.1,) * 5)
    zeros = Engine(input_token_logprobs=entries(None, *[0.0] * 5, ids=(12, *range(20, 25))))
    with pytest.raises(ScoringError, match="lost its weights"):
        await score(zeros, [long])


def test_messages_are_refused() -> None:
    with pytest.raises(PayloadError) as refused:
        TeacherRole(TeacherOptions()).adapt_generate({"messages": [{"role": "user", "content": "?"}]})
    assert refused.value.field == "messages"
