"""What a batch has to have before the example trains on it, and one step on a batch that has it."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.transferqueue
torch = pytest.importorskip("torch", reason="comes with rolecall[transferqueue]")

from checkpoints import GgufCheckpoint  # noqa: E402
from learner import Learner, Recipe  # noqa: E402
from losses import group_advantages  # noqa: E402
from publish import own_log_probs  # noqa: E402
from rows import BatchRefused, advantages_of, check_rows, to_tokens  # noqa: E402

RECIPE = Recipe(
    reward_weights={"judge": 1.0, "rule": 2.0}, distillation=0.5, learning_rate=1e-3, micro_batch=3
)


def row(number: int, length: int, model=None, teacher=None) -> dict:
    chance = np.random.default_rng(number)
    prompt, response = chance.integers(3, 300, 4 + number % 3), chance.integers(3, 300, length)
    made = {
        "sample_id": f"p{number // 2}/{number % 2}",
        "group_id": f"p{number // 2}",
        "prompt_ids": prompt.astype(np.int32),
        "response_ids": response.astype(np.int32),
        "rollout_log_probs": np.full(length, -2.0, np.float32),
        "teacher_log_probs": np.full(length, -2.0, np.float32),
        "teacher_topk_ids": np.tile(np.arange(4, dtype=np.int32), (length, 1)),
        "teacher_topk_log_probs": np.full((length, 4), -2.0, np.float32),
        "weight_version": "step-3",
        "reward": {"judge": 0.25 * number, "rule": float(number % 2)},
    }
    if model is not None:
        ids = torch.from_numpy(np.concatenate([prompt, response]))
        made["rollout_log_probs"] = own_log_probs(model, ids)[-length:].numpy()
        with torch.no_grad():
            places = torch.arange(len(prompt), len(ids))
            best = teacher.log_probs(ids[None], torch.zeros_like(places), places)
        made["teacher_log_probs"] = best.gather(1, ids[places, None]).squeeze(1).numpy()
        values, tokens = best.topk(4, dim=-1)
        made["teacher_topk_ids"], made["teacher_topk_log_probs"] = tokens.int().numpy(), values.numpy()
    return made


def rows() -> list[dict]:
    return [row(number, 2 + number) for number in range(4)]


def test_tokens_stand_where_the_model_looks_for_them() -> None:
    batch = rows()
    tokens = to_tokens(batch, torch.tensor([0.0, 1.0, 2.0, 3.0]), torch.device("cpu"))
    assert len(tokens) == 2 + 3 + 4 + 5
    assert tokens.ids.shape == (4, max(len(one["prompt_ids"]) + len(one["response_ids"]) for one in batch))
    assert torch.equal(tokens.ids[tokens.rows, tokens.places], tokens.targets)
    assert tokens.targets.tolist() == [int(token) for one in batch for token in one["response_ids"]]
    assert tokens.advantages.tolist() == [0.0] * 2 + [1.0] * 3 + [2.0] * 4 + [3.0] * 5
    assert tokens.teacher_ids.shape == tokens.teacher_topk_log_probs.shape == (14, 4)


def test_rewards_are_weighted_before_they_are_compared_in_groups() -> None:
    expected = group_advantages(torch.tensor([0.0, 2.25, 0.5, 2.75]), ["p0", "p0", "p1", "p1"])
    assert torch.equal(advantages_of(rows(), RECIPE.reward_weights), expected)


@pytest.mark.parametrize("field", ["teacher_log_probs", "teacher_topk_ids", "teacher_topk_log_probs"])
def test_a_row_without_a_teachers_field_is_refused(field: str) -> None:
    batch = rows()
    check_rows(batch, "step-3")
    batch[2][field] = None
    with pytest.raises(BatchRefused, match=f"p1/0 has no {field}; the job needs a teacher role with top_k"):
        check_rows(batch, "step-3")
    del batch[2][field]
    with pytest.raises(BatchRefused, match=f"p1/0 has no {field}"):
        check_rows(batch, "step-3")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"weight_version": "step-2"}, "sampled with weights 'step-2', the policy is at 'step-3'"),
        ({"weight_version": None}, "sampled with weights None"),
        ({"teacher_log_probs": np.zeros(9, np.float32)}, "teacher_log_probs must be 3 finite rows"),
        ({"teacher_topk_log_probs": np.full((3, 4), np.nan)}, "teacher_topk_log_probs must be 3 finite rows"),
        ({"reward": 1.0}, "rewards by name are expected, found 1.0"),
    ],
)
def test_a_row_that_can_not_be_trained_on_is_refused(change: dict, reason: str) -> None:
    batch = rows()
    batch[1] |= change
    with pytest.raises(BatchRefused, match=reason):
        check_rows(batch, "step-3")


def test_a_reward_that_is_counted_has_to_be_there_and_an_empty_batch_is_none() -> None:
    with pytest.raises(BatchRefused, match="p0/0 has no reward 'length'; it has judge, rule"):
        advantages_of(rows(), {"length": 1.0})
    with pytest.raises(BatchRefused, match="no rows"):
        check_rows([], "0")


def test_steps_close_the_distance_to_the_teacher_and_micro_batches_add_up(small_gguf, tmp_path) -> None:
    checkpoint = GgufCheckpoint(small_gguf)
    teacher, noisy = checkpoint.load(), checkpoint.load()
    source = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in noisy.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=source))
    checkpoint.write(noisy, tmp_path / "student.gguf")
    student = GgufCheckpoint(tmp_path / "student.gguf")
    batch = [row(number, 5 + number, student.load(), teacher) for number in range(6)]
    learner = Learner(student, RECIPE, torch.device("cpu"))
    first = learner.evaluate(batch)
    assert first["rollout_kl"] == pytest.approx(0.0, abs=1e-6)
    whole = Learner(student, Recipe(**{**vars(RECIPE), "micro_batch": 6}), torch.device("cpu")).evaluate(
        batch
    )
    assert first == pytest.approx(whole, abs=1e-5)
    assert first["loss"] == pytest.approx(first["policy_loss"] + 0.5 * first["teacher_kl"], abs=1e-5)
    for _ in range(5):
        with learner.on_device():
            learner.step(batch)
    assert learner.evaluate(batch)["teacher_kl"] < 0.7 * first["teacher_kl"]
    assert all(parameter.grad is None for parameter in learner.model.parameters())


def test_the_model_that_is_differentiated_has_the_published_values_and_small_steps_still_add_up(
    small_gguf,
) -> None:
    checkpoint = GgufCheckpoint(small_gguf)
    recipe = Recipe(reward_weights={"judge": 1.0}, distillation=1.0, learning_rate=1e-6)
    learner = Learner(checkpoint, recipe, torch.device("cpu"))
    before = {name: values.clone() for name, values in learner.model.state_dict().items()}
    unchanged = []
    for _ in range(60):
        learner.step(rows())
        learner.model.zero_grad()
        after = learner.model.state_dict()
        matrices = {name: values for name, values in after.items() if values.ndim == 2}
        assert all(torch.equal(values, values.half().float()) for values in matrices.values())
        unchanged.append(sum(int((values == before[name]).sum()) for name, values in matrices.items()))
    assert unchanged[0] > unchanged[-1]
