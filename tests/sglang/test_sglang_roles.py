"""What teachers and judges get from a real SGLang, held against transformers on the same checkpoint."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from rolecall.api import NamedReward, Sample, StageContext, StageRequest, WeightSource
from rolecall.batches.validation import check_scores
from rolecall.calibration.evaluate import score_labelled
from rolecall.calibration.figures import agreement
from rolecall.calibration.labelled import load_labelled
from rolecall.testing.one_engine import OneEngine
from rolecall.testing.samples import token_sample
from rolecall_plugins.rewards.genrm_judge import GenRMJudge, GenRMJudgeOptions
from rolecall_roles.teacher.options import TeacherOptions
from rolecall_roles.teacher.role import TeacherRole

pytestmark = [pytest.mark.sglang, pytest.mark.asyncio(loop_scope="session")]

CLOSE = 1e-3
PROMPT = (17, 45, 201, 8, 133, 77)
TEMPLATE = "what is {prompt}? {response}"


SAMPLES = [
    token_sample("five", PROMPT, (250, 19, 64, 91, 5), ((250, 3), (7, 19), (200, 201), (91, 90), (300, 301))),
    token_sample("one", PROMPT, (31,), ((4, 5, 6),)),
    token_sample("none", PROMPT, (), ()),
]


async def taught(client: httpx.AsyncClient, **options: Any) -> Any:
    request = StageRequest(models={"teacher": WeightSource.STATIC})
    (stage,) = TeacherRole(TeacherOptions(**options)).scoring_stages(request)
    context = StageContext(client=OneEngine(client), max_concurrency=2, progress=lambda *_: None)
    scores = await stage.run(SAMPLES, context)
    check_scores(stage, SAMPLES, scores)
    return scores


def expected(trainer: Any, checkpoint: Path, one: Sample) -> np.ndarray[Any, Any]:
    """[R, vocabulary]: what was thought of each response token before it was there."""
    ids = [*one.prompt_ids, *one.response_ids]
    everything = trainer.ask("score", path=str(checkpoint), ids=ids, top=1)["all"]
    return np.array(everything)[len(one.prompt_ids) - 1 : -1]


async def test_a_teachers_fields_are_about_the_tokens_that_they_stand_for(
    client: httpx.AsyncClient, trainer: Any, checkpoints: tuple[Path, Path]
) -> None:
    scores = await taught(client, top_k=4)
    for one in SAMPLES:
        fields, length = scores[one.sample_id], len(one.response_ids)
        ids, top = fields["teacher_topk_ids"], fields["teacher_topk_log_probs"]
        assert (ids.shape, top.shape) == ((length, 4), (length, 4))
        right = expected(trainer, checkpoints[0], one)
        np.testing.assert_allclose(
            fields["teacher_log_probs"], right[range(length), one.response_ids], atol=CLOSE
        )
        np.testing.assert_allclose(top, -np.sort(-right, axis=1)[:, :4], atol=CLOSE)
        np.testing.assert_allclose(top, np.take_along_axis(right, ids.astype(int), axis=1), atol=CLOSE)


@pytest.mark.parametrize("window", [2, 64])
async def test_a_union_has_the_policys_tokens_whatever_its_windows(
    client: httpx.AsyncClient, trainer: Any, checkpoints: tuple[Path, Path], window: int
) -> None:
    scores = await taught(client, top_k=3, union=True, union_window=window)
    for one in SAMPLES:
        fields = scores[one.sample_id]
        right = expected(trainer, checkpoints[0], one)
        for place, token in enumerate(one.response_ids):
            size = fields["teacher_topk_size"][place]
            ids = fields["teacher_topk_ids"][place]
            best = np.argsort(-right[place])[:3].tolist()
            assert one.rollout_topk_ids is not None
            assert set(ids[:size].tolist()) == {*best, token, *one.rollout_topk_ids[place]}
            assert (ids[size:] == -1).all()
            np.testing.assert_allclose(
                fields["teacher_topk_log_probs"][place, :size], right[place, ids[:size]], atol=CLOSE
            )
            assert fields["teacher_log_probs"][place] == pytest.approx(right[place, token], abs=CLOSE)


async def test_a_judges_verdicts_and_their_agreement_are_those_of_the_checkpoint(
    client: httpx.AsyncClient, trainer: Any, checkpoints: tuple[Path, Path], tmp_path: Path
) -> None:
    """What ``rolecall judge-eval`` does, with yes and no by log-probability."""
    engine = OneEngine(client)
    asked = {"france": "paris", "two plus three": "five", "england": "france"}
    thought = {}
    for prompt, response in asked.items():
        answer = await engine.generate(
            {
                "text": TEMPLATE.replace("{prompt}", prompt).replace("{response}", response),
                "sampling_params": {"temperature": 0, "max_new_tokens": 1},
                "return_logprob": True,
                "logprob_start_len": 0,
                "top_logprobs_num": 20,
                "return_text_in_logprobs": True,
            }
        )
        ids = [entry[1] for entry in answer["meta_info"]["input_token_logprobs"]]
        right = trainer.ask("score", path=str(checkpoints[0]), ids=ids, top=1)["all"][-1]
        thought[prompt] = [
            (text.strip().casefold(), math.exp(right[token]))
            for _, token, text in answer["meta_info"]["output_top_logprobs"][0]
        ]
    # Words that this model might say: those that it finds likeliest after the first question.
    yes, no, *_ = dict.fromkeys(text for text, _ in thought["france"] if text and text.isascii())

    def likely(prompt: str, word: str) -> float:
        return sum(probability for text, probability in thought[prompt] if text == word)

    shares = {
        prompt: likely(prompt, yes) / (likely(prompt, yes) + likely(prompt, no))
        for prompt in asked
        if likely(prompt, yes) + likely(prompt, no) > 1e-3
    }
    labels = {prompt: round(shares.get(prompt, 0.0)) for prompt in asked}
    file = tmp_path / "labelled.jsonl"
    file.write_text(
        "".join(
            json.dumps({"prompt": prompt, "response": response, "label": labels[prompt]}) + "\n"
            for prompt, response in asked.items()
        )
    )
    options = GenRMJudgeOptions(template=TEMPLATE, form="log_prob", yes=(yes,), no=(no,), least_mass=1e-3)
    rewards = await score_labelled(
        load_labelled(file, {}),
        NamedReward(
            name="judge", adapter=GenRMJudge(options), on_error="fail_batch", retries=0, timeout_s=60.0
        ),
        engine,
        max_concurrency=2,
        progress=lambda done: None,
    )
    assert "france" in shares
    for prompt, reward in zip(asked, rewards, strict=True):
        if prompt in shares:
            assert reward == pytest.approx(shares[prompt], abs=CLOSE)
        else:
            assert isinstance(reward, str), "no verdict is an error, and no 0"
            assert "at least 0.001 is allowed" in reward
    found = agreement([labels[prompt] for prompt in asked], rewards)
    assert (found.scored, found.failed, found.share) == (len(shares), len(asked) - len(shares), 1.0)
