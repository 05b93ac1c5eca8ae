"""The moving average of a policy's weights, and its versions."""

from __future__ import annotations

import numpy as np
import pytest

from rolecall_roles.teacher import MovingAverage


def weights(value: float) -> dict[str, np.ndarray]:
    return {"a": np.full((2, 3), value, dtype=np.float32), "b": np.asarray([value, -value], dtype=np.float32)}


def test_it_follows_the_policy_by_the_part_that_the_decay_leaves() -> None:
    average = MovingAverage(weights(1.0), decay=0.75)
    policy = weights(5.0)
    average.update(policy)
    np.testing.assert_array_equal(average.weights["a"], np.full((2, 3), 2.0))
    np.testing.assert_array_equal(average.weights["b"], [2.0, -2.0])
    average.update(policy)
    np.testing.assert_array_equal(average.weights["b"], [2.75, -2.75])
    np.testing.assert_array_equal(policy["b"], [5.0, -5.0])


def test_many_updates_are_the_closed_formula() -> None:
    average = MovingAverage(weights(0.0), decay=0.9)
    for _ in range(50):
        average.update(weights(1.0))
    np.testing.assert_allclose(average.weights["a"], 1 - 0.9**50, rtol=1e-5)


def test_it_begins_with_a_copy() -> None:
    policy = weights(1.0)
    average = MovingAverage(policy, decay=0.5)
    average.update(weights(3.0))
    assert policy["a"][0, 0] == 1.0


def test_every_update_is_a_version_of_its_own() -> None:
    average = MovingAverage(weights(1.0), decay=0.5, name="teacher")
    assert [average.version, *(average.update(weights(n)) for n in range(3)), average.version] == [
        "teacher-0",
        "teacher-1",
        "teacher-2",
        "teacher-3",
        "teacher-3",
    ]


@pytest.mark.parametrize("strange", [{"a": np.zeros((2, 3))}, {"a": np.zeros((3, 2)), "b": np.zeros(2)}])
def test_another_model_is_refused_and_changes_nothing(strange: dict[str, np.ndarray]) -> None:
    average = MovingAverage(weights(1.0), decay=0.5)
    with pytest.raises(ValueError, match=r"differ in 1 tensors, e.g. b|a: the policy has the shape"):
        average.update(strange)
    assert average.version == "ema-0"
    np.testing.assert_array_equal(average.weights["b"], [1.0, -1.0])


@pytest.mark.parametrize("decay", [-0.1, 1.0, 2.0, float("nan")])
def test_a_decay_that_is_none_is_refused(decay: float) -> None:
    with pytest.raises(ValueError, match="decay must be from 0 to below 1"):
        MovingAverage(weights(1.0), decay=decay)
