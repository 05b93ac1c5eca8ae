"""The teacher role's fields, against a forward pass that shares no code with the engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from rolecall.api import (
    FromDisk,
    GenerationContext,
    Prompt,
    Sample,
    ScoringError,
    StageContext,
    StageRequest,
    WeightSource,
)
from rolecall.batches.validation import check_scores
from rolecall.testing.one_engine import OneEngine
from rolecall.testing.samples import token_sample
from rolecall_plugins.engines.embedded.engine import EmbeddedEngine
from rolecall_roles.rollout.options import RolloutOptions
from rolecall_roles.rollout.role import RolloutRole
from rolecall_roles.teacher import MovingAverage
from rolecall_roles.teacher.external_options import ExternalTeacher
from rolecall_roles.teacher.options import TeacherOptions
from rolecall_roles.teacher.role import TeacherRole

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="session")]

CLOSE = 1e-3
FRANCE = (504, 3575, 282, 4649, 314)
VOCABULARY = 49152


SAMPLES = [
    # " Paris. The" and on, an answer that is no answer, a prompt of one token, a single token, and none.
    token_sample("plain", FRANCE, (7042, 30, 378, 3575), ((7042, 260), (30, 28), (378, 657), (9, 49151))),
    token_sample("strange", FRANCE, (17, 40000, 2, 17, 17), ((17, 1), (5, 6), (2, 3), (4, 9), (8, 17))),
    token_sample("short prompt", FRANCE[:1], FRANCE[1:], ((1, 2), (3, 4), (5, 6), (7, 8))),
    token_sample("short response", FRANCE, (7042,), ((0, 1, 2),)),
    token_sample("empty response", FRANCE, (), ()),
]


async def score(
    http: httpx.AsyncClient | None,
    samples: Sequence[Sample],
    source: WeightSource = WeightSource.STATIC,
    **options: Any,
) -> Any:
    models = {} if http is None else {"teacher": source}
    (stage,) = TeacherRole(TeacherOptions(**options)).scoring_stages(StageRequest(models=models))
    client = None if http is None else OneEngine(http)
    scores = await stage.run(
        samples, StageContext(client=client, max_concurrency=2, progress=lambda *_: None)
    )
    check_scores(stage, samples, scores)
    return scores


def expected(reference: Any, one: Sample) -> np.ndarray[Any, Any]:
    """[R, vocabulary]: what was thought of each response token before it was there."""
    return reference.log_probabilities([*one.prompt_ids, *one.response_ids])[len(one.prompt_ids) - 1 : -1]


async def test_every_field_is_about_the_token_that_it_stands_for(
    http: httpx.AsyncClient, reference: Any
) -> None:
    scores = await score(http, SAMPLES, top_k=4)
    for one in SAMPLES:
        fields, length = scores[one.sample_id], len(one.response_ids)
        log_probs, ids, top = (
            fields[f"teacher_{name}"] for name in ("log_probs", "topk_ids", "topk_log_probs")
        )
        assert (log_probs.shape, ids.shape, top.shape) == ((length,), (length, 4), (length, 4))
        if not length:
            continue
        right = expected(reference, one)
        np.testing.assert_allclose(log_probs, right[range(length), one.response_ids], atol=CLOSE)
        np.testing.assert_allclose(top, -np.sort(-right, axis=1)[:, :4], atol=CLOSE)
        np.testing.assert_allclose(top, np.take_along_axis(right, ids.astype(int), axis=1), atol=CLOSE)
        # What one place further on either side would be is told apart.
        assert (
            length == 1 or np.abs(log_probs[:-1] - right[range(1, length), one.response_ids[:-1]]).max() > 1
        )


@pytest.mark.parametrize("window", [2, 64])
async def test_a_union_is_right_token_by_token_whatever_its_windows(
    http: httpx.AsyncClient, reference: Any, window: int
) -> None:
    scores = await score(http, SAMPLES, top_k=3, union=True, union_window=window)
    for one in SAMPLES:
        fields = scores[one.sample_id]
        sizes, policy = fields["teacher_topk_size"], one.rollout_topk_ids or ()
        assert fields["teacher_topk_ids"].shape == (len(sizes), max([3, *sizes]))
        if not len(sizes):
            continue
        right = expected(reference, one)
        np.testing.assert_allclose(
            fields["teacher_log_probs"], right[range(len(sizes)), one.response_ids], atol=CLOSE
        )
        for place, size in enumerate(sizes):
            ids = fields["teacher_topk_ids"][place]
            assert (ids[size:] == -1).all()
            best = set(np.argsort(-right[place])[:3].tolist())
            assert set(ids[:size].tolist()) == best | {one.response_ids[place], *policy[place]}
            np.testing.assert_allclose(
                fields["teacher_topk_log_probs"][place, :size], right[place, ids[:size]], atol=CLOSE
            )


async def test_what_the_policy_found_probable_is_in_the_union(http: httpx.AsyncClient) -> None:
    generate = RolloutRole(RolloutOptions(top_k=3)).generation()
    assert generate is not None
    context = GenerationContext(
        client=OneEngine(http),
        samples_per_prompt=2,
        sampling={"temperature": 1.0, "max_new_tokens": 5, "sampling_seed": 3},
        max_concurrency=2,
        progress=lambda *_: None,
    )
    samples = await generate([Prompt(prompt_id="p", text="Name a fruit.")], context)
    scores = await score(http, samples, top_k=2, union=True, union_window=2)
    for one in samples:
        assert one.rollout_topk_ids is not None
        rows = zip(
            scores[one.sample_id]["teacher_topk_ids"].tolist(),
            one.rollout_topk_ids,
            one.response_ids,
            strict=True,
        )
        for ids, policy, token in rows:
            assert {*policy, token} <= set(ids)
            assert len(set(policy)) == 3


async def test_a_real_engine_as_an_external_teacher_is_known_by_model_and_vocabulary(
    engine: EmbeddedEngine, http: httpx.AsyncClient, reference: Any
) -> None:
    path = (await http.get("/model_info")).json()["model_path"]
    (one, *_) = SAMPLES

    def teacher(**changed: Any) -> dict[str, ExternalTeacher]:
        given: dict[str, Any] = {"model_path": path, "vocabulary_size": VOCABULARY, **changed}
        return {"far": ExternalTeacher(urls=(engine.base_url,), **given)}

    fields = (await score(None, [one], top_k=0, external=teacher()))[one.sample_id]
    right = expected(reference, one)[range(4), one.response_ids]
    np.testing.assert_allclose(fields["teacher_log_probs"], right, atol=CLOSE)
    with pytest.raises(ScoringError, match="not '/models/other'"):
        await score(None, [one], external=teacher(model_path="/models/other"))
    with pytest.raises(ScoringError, match="a vocabulary of 49152, not of 49153"):
        await score(None, [one], external=teacher(vocabulary_size=VOCABULARY + 1))


async def test_a_teacher_that_follows_the_policy_scores_with_the_average_and_says_its_version(
    engine: EmbeddedEngine,
    http: httpx.AsyncClient,
    reference: Any,
    model_path: Path,
    tmp_path: Path,
    save_checkpoint: Any,
    hugging_face: Any,
) -> None:
    name, (one, *_) = "blk.20.ffn_down.weight", SAMPLES
    before = (await score(http, [one], WeightSource.ACTOR, top_k=0))[one.sample_id]
    average = MovingAverage({name: reference.weights[name]}, decay=0.5)
    # The policy has moved: this tensor has twice the size, so its average one and a half.
    version = average.update({name: reference.weights[name] * np.float32(2)})
    checkpoint = tmp_path / version
    checkpoint.mkdir()
    save_checkpoint(checkpoint / "model.safetensors", hugging_face(reference, average.weights))
    try:
        await engine.update_weights(FromDisk(path=checkpoint), version)
        after = (await score(http, [one], WeightSource.ACTOR, top_k=0))[one.sample_id]
    finally:
        await engine.update_weights(FromDisk(path=model_path), "0")
    original, reference.weights = (
        reference.weights,
        {**reference.weights, name: reference.weights[name] * 1.5},
    )
    try:
        right = expected(reference, one)[range(4), one.response_ids]
    finally:
        reference.weights = original
    np.testing.assert_allclose(after["teacher_log_probs"], right, atol=5e-3)
    assert np.abs(after["teacher_log_probs"] - before["teacher_log_probs"]).max() > 0.02
    assert (before["teacher_weight_version"], after["teacher_weight_version"]) == ("0", "ema-1")
