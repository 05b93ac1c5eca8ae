"""From scored samples to the rows a sink stores: the columns that training reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rolecall.batches.sample import Sample
from rolecall.batches.schedule import REWARD_FIELD
from rolecall.interfaces.batch_sink import Row

SAMPLE_COLUMNS = (
    "sample_id",
    "group_id",
    "prompt",
    "answer",
    "data_source",
    "prompt_ids",
    "response",
    "response_ids",
    "rollout_log_probs",
    "finish_reason",
    "weight_version",
    "reward",
)
"""Columns that every row has; the fields of the stages follow under their own names."""


def to_rows(samples: Sequence[Sample]) -> list[Row]:
    """Return one row a sample, in order.

    ``prompt_ids`` [P] and ``response_ids`` [R] are int32, ``rollout_log_probs`` [R] is float32.
    ``reward`` is None if the job has no rewards.
    """
    return [_row(sample) for sample in samples]


def _row(sample: Sample) -> Row:
    return {
        "sample_id": sample.sample_id,
        "group_id": sample.group_id,
        "prompt": sample.prompt.text,
        "answer": sample.prompt.answer,
        "data_source": sample.prompt.data_source,
        "prompt_ids": np.asarray(sample.prompt_ids, dtype=np.int32),
        "response": sample.response,
        "response_ids": np.asarray(sample.response_ids, dtype=np.int32),
        "rollout_log_probs": np.asarray(sample.rollout_log_probs, dtype=np.float32),
        "finish_reason": sample.finish_reason,
        "weight_version": sample.weight_version,
        REWARD_FIELD: None,
        **sample.scores,
    }
