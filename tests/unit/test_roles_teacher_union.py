"""The union of what the teacher and the policy find probable, and what else a sample brings with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from rolecall.api import Prompt, Sample, ScoringError, StageContext, StageRequest, WeightSource
from rolecall.batches.validation import check_scores
from rolecall_roles.teacher.log_probs import unite
from rolecall_roles.teacher.options import TeacherOptions
from rolecall_roles.teacher.role import TeacherRole

RESPONSE = (20, 21, 22, 23, 24)
SAMPLE = Sample(
    sample_id="p/0",
    group_id="p",
    prompt=Prompt(prompt_id="p", text="?"),
    prompt_ids=(10, 11, 12),
    response="yes",
    response_ids=RESPONSE,
    rollout_log_probs=(-0.1,) * 5,
    finish_reason="stop",
    weight_version="3",
    rollout_topk_ids=((20, 40), (21, 50), (60, 22), (23, 40), (70, 71)),
)


def log_prob(position: int, token: int) -> float:
    """What this teacher thinks of a token at a position of the whole sequence."""
    return -(1 + (7 * position + 13 * token) % 101) / 8


class Engine:
    """Answers as SGLang does, with the same numbers whatever the window."""

    def __init__(self, version: Any = "teacher-1") -> None:
        self.requests: list[dict[str, Any]] = []
        self.versions = [version] if not isinstance(version, list) else version
        self.change: dict[str, Any] = {}

    async def generate(self, payload: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        self.requests.append(dict(payload))
        ids, start = payload["input_ids"], payload["logprob_start_len"]
        more = 4 if "image_data" in payload else 0  # what the engine made of an image, before the response
        places = [*[(None, 9)] * more, *enumerate(ids[start:], start)]

        def reported(tokens: Any) -> list[Any]:
            return [
                None
                if number == 0
                else [[log_prob(place or 0, token), token, None] for token in tokens(place)]
                for number, (place, _) in enumerate(places)
            ]

        top = payload["top_logprobs_num"]
        meta: dict[str, Any] = {
            "weight_version": self.versions[min(len(self.requests), len(self.versions)) - 1],
            "input_token_logprobs": [
                [None if number == 0 else log_prob(place or 0, token), token, None]
                for number, (place, token) in enumerate(places)
            ],
            "input_top_logprobs": reported(lambda place: range((place or 0) + 17, (place or 0) + 17 + top)),
        }
        if asked := payload.get("token_ids_logprob"):
            meta["input_token_ids_logprobs"] = reported(lambda _: sorted(asked, reverse=True))
        return {"text": "", "output_ids": [], "meta_info": {**meta, **self.change}}

    async def chat(self, messages: Any, **_: Any) -> str:
        raise AssertionError("the teacher sends raw payloads")


async def score(
    engine: Engine,
    samples: Sequence[Sample] = (SAMPLE,),
    models: Mapping[str, WeightSource] | None = None,
    **options: Any,
) -> Any:
    role = TeacherRole(TeacherOptions(**options))
    (stage,) = role.scoring_stages(StageRequest(models=models or {}))
    scores = await stage.run(
        samples, StageContext(client=engine, max_concurrency=4, progress=lambda *_: None)
    )
    check_scores(stage, samples, scores)
    return scores


def row(fields: Any, place: int) -> dict[int, float]:
    size = fields["teacher_topk_size"][place]
    ids, values = fields["teacher_topk_ids"][place], fields["teacher_topk_log_probs"][place]
    assert (ids[size:] == -1).all()
    assert (values[size:] == -1e4).all()
    assert (ids[:size] >= 0).all()
    return dict(zip(ids[:size].tolist(), values[:size].tolist(), strict=True))


@pytest.mark.parametrize("window", [1, 2, 3, 5, 64])
async def test_a_union_has_the_teacher_s_tokens_the_sampled_one_and_the_policy_s(window: int) -> None:
    engine = Engine()
    fields = (await score(engine, top_k=2, union=True, union_window=window))["p/0"]
    assert len(engine.requests) == -(-5 // window)
    ids, values, sizes = (fields[f"teacher_topk_{name}"] for name in ("ids", "log_probs", "size"))
    assert (ids.dtype, values.dtype, sizes.dtype) == (np.int32, np.float32, np.int32)
    assert ids.shape == values.shape == (5, max(sizes))
    assert sizes.shape == (5,)
    for place, token in enumerate(RESPONSE):
        position = 3 + place
        tokens = dict.fromkeys([position + 17, position + 18, token, *SAMPLE.rollout_topk_ids[place]])  # type: ignore[index]
        assert list(row(fields, place)) == list(tokens), "in this order, none twice"
        for one, value in row(fields, place).items():
            assert value == np.float32(log_prob(position, one)), (place, one)
    np.testing.assert_array_equal(
        fields["teacher_log_probs"],
        np.asarray([log_prob(3 + place, token) for place, token in enumerate(RESPONSE)], dtype=np.float32),
    )


async def test_windows_ask_for_their_own_tokens_only_and_follow_each_other() -> None:
    engine = Engine()
    await score(engine, top_k=2, union=True, union_window=2)
    assert [(len(sent["input_ids"]), sent["logprob_start_len"]) for sent in engine.requests] == [
        (5, 2),
        (7, 4),
        (8, 6),
    ]
    assert [sent["token_ids_logprob"] for sent in engine.requests] == [
        [20, 40, 21, 50],
        [60, 22, 23, 40],
        [70, 71],
    ]


async def test_samples_without_the_policy_s_tokens_take_one_request() -> None:
    engine = Engine()
    plain = evolve(SAMPLE, rollout_topk_ids=None)
    fields = (await score(engine, [plain], top_k=2, union=True, union_window=2))["p/0"]
    assert len(engine.requests) == 1
    assert "token_ids_logprob" not in engine.requests[0]
    assert fields["teacher_topk_size"].tolist() == [2] * 2 + [2] * 3, "the sampled token is among the two"
    far = evolve(plain, response_ids=(90, 21), rollout_log_probs=(-1.0, -1.0))
    fields = (await score(Engine(), [far], top_k=2, union=True))["p/0"]
    assert fields["teacher_topk_size"].tolist() == [3, 2]
    assert fields["teacher_topk_ids"].tolist() == [[20, 21, 90], [21, 22, -1]]


async def test_the_union_of_an_empty_response_is_empty() -> None:
    empty = evolve(SAMPLE, response_ids=(), rollout_log_probs=(), rollout_topk_ids=())
    fields = (await score(Engine(), [empty], top_k=2, union=True))["p/0"]
    assert fields["teacher_topk_ids"].shape == fields["teacher_topk_log_probs"].shape == (0, 2)
    assert fields["teacher_topk_size"].shape == (0,)


def test_a_union_needs_alternatives() -> None:
    with pytest.raises(ValueError, match=r"union unites .* set top_k"):
        TeacherOptions(union=True, top_k=0)


def asked(*rows: Any) -> dict[str, Any]:
    return {"input_token_ids_logprobs": [None, *rows]}


TWO = evolve(SAMPLE, response_ids=(20, 21), rollout_log_probs=(-1.0, -1.0), rollout_topk_ids=((30,), (31,)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_token_ids_logprobs": None}, "answered no input_token_ids_logprobs, expected 3"),
        (asked([[-1, 30, None], [-2, 31, None]]), "answered 2 input_token_ids_logprobs, expected 3"),
        (asked([[-1, 30, None], [-2, 31, None]], None), r"\[2\] has 0 tokens, of which 0 .* expected the 2"),
        (asked(*[[[-1, 30, None]]] * 2), r"\[1\] has 1 tokens, of which 1"),
        (asked(*[[[-1, 30, None], [-2, 32, None]]] * 2), r"\[1\] has 2 tokens, of which 1"),
        (asked(*[[[-1, 30, None], [-1, 30, None]]] * 2), r"\[1\] has 2 tokens, of which 1"),
        (asked(*[[[-1, 30, None], [None, 31, None]]] * 2), "None, not a finite number"),
        (asked(*[[[-1, 30, None], [float("inf"), 31, None]]] * 2), "inf, not a finite number"),
        ({"input_top_logprobs": [None, *[[[-1, 5, None], [-1, 5, None]]] * 2]}, "names a token twice"),
        ({"input_top_logprobs": [None, *[[[-1, 5, None], [-1, 2**31, None]]] * 2]}, "names no token id"),
        ({"input_top_logprobs": [None, *[[[-1, 5, None], [-1, -1, None]]] * 2]}, "names no token id"),
        ({"input_top_logprobs": [None, *[[[0.5, 5, None], [-1, 6, None]]] * 2]}, "a probability above 1"),
    ],
)
async def test_a_union_that_can_not_be_right_is_refused(change: dict[str, Any], message: str) -> None:
    engine = Engine()
    engine.change = change
    with pytest.raises(ScoringError, match=message) as refused:
        await score(engine, [TWO], top_k=2, union=True)
    assert str(refused.value).startswith('teacher: sample "p/0": ')


async def test_policy_s_tokens_that_are_not_one_row_a_token_are_refused() -> None:
    with pytest.raises(ScoringError, match="has 1 rollout_topk_ids for 2 tokens"):
        await score(Engine(), [evolve(TWO, rollout_topk_ids=((1,),))], top_k=2, union=True)


async def test_lost_weights_show_in_a_single_token_by_its_alternatives() -> None:
    one = evolve(SAMPLE, response_ids=(20,), rollout_log_probs=(-1.0,), rollout_topk_ids=None)
    engine = Engine()
    engine.change = {
        "input_token_logprobs": [[None, 12, None], [-10.8, 20, None]],
        "input_top_logprobs": [None, [[-10.8, token, None] for token in range(4)]],
    }
    with pytest.raises(
        ScoringError, match=r"4 most probable tokens are equally probable .* lost its weights"
    ):
        await score(engine, [one], top_k=4)


# --- what comes with a sample -------------------------------------------------------------


async def test_an_image_goes_along_and_the_response_s_tokens_are_counted_from_the_end() -> None:
    shown = evolve(
        SAMPLE, prompt=evolve(SAMPLE.prompt, media={"image_data": ["picture"]}), rollout_topk_ids=None
    )
    engine = Engine()
    fields = (await score(engine, [shown], top_k=2))["p/0"]
    assert engine.requests[0]["image_data"] == ["picture"]
    np.testing.assert_array_equal(
        fields["teacher_log_probs"],
        np.asarray([log_prob(3 + place, token) for place, token in enumerate(RESPONSE)], dtype=np.float32),
    )
    assert fields["teacher_topk_ids"][:, 0].tolist() == [20, 21, 22, 23, 24]


async def test_more_entries_than_tokens_are_refused_where_nothing_was_shown() -> None:
    engine = Engine()
    engine.change = {
        "input_token_logprobs": [[None, 9, None]] + [[-1.0, token, None] for token in (12, *RESPONSE)]
    }
    with pytest.raises(ScoringError, match="answered 7 input_token_logprobs, expected 6"):
        await score(engine)


async def test_a_teacher_whose_weights_change_says_which_scored_a_sample() -> None:
    models = {"fixed": WeightSource.STATIC, "follower": WeightSource.ACTOR}
    fields = (await score(Engine("ema-7"), models=models))["p/0"]
    assert fields["teacher_weight_version"] == "ema-7"
    fields = (await score(Engine("ema-7"), models={"fixed": WeightSource.STATIC}))["p/0"]
    assert "teacher_weight_version" not in fields


async def test_a_teacher_whose_weights_change_must_say_so() -> None:
    with pytest.raises(ScoringError, match="reports no weight_version"):
        await score(Engine(None), models={"follower": WeightSource.ACTOR})


async def test_a_sample_is_scored_by_one_version() -> None:
    with pytest.raises(ScoringError, match=r"weights changed while it was scored: \['ema-1', 'ema-2'\]"):
        await score(Engine(["ema-1", "ema-2"]), top_k=2, union=True, union_window=3)


# --- unite, by itself ---------------------------------------------------------------------

tokens = st.integers(0, 30)


@given(
    st.lists(
        st.tuples(
            tokens,
            st.lists(tokens, min_size=3, max_size=3, unique=True),
            st.dictionaries(tokens, st.floats(-50, 0, width=32), max_size=4),
        ),
        max_size=6,
    )
)
def test_every_row_of_a_union_has_each_of_its_tokens_once(rows: list[Any]) -> None:
    top_ids = np.asarray([top for _, top, _ in rows], dtype=np.int32).reshape(len(rows), 3)
    sampled = np.full(len(rows), -3.0, dtype=np.float32)
    top = np.full((len(rows), 3), -1.0, dtype=np.float32)
    ids, values, sizes = unite(
        response_ids=[token for token, _, _ in rows],
        sampled=sampled,
        top_ids=top_ids,
        top=top,
        others=[others for _, _, others in rows],
    )
    assert ids.shape == values.shape == (len(rows), max([3, *sizes.tolist()]))
    assert np.isfinite(values).all()
    for place, (token, alternatives, others) in enumerate(rows):
        kept = ids[place, : sizes[place]].tolist()
        assert len(kept) == len(set(kept))
        assert set(kept) == {token, *alternatives, *others}
        assert kept[:3] == alternatives
        assert (ids[place, sizes[place] :] == -1).all()
        assert (np.exp(values[place, sizes[place] :]) == 0).all()
