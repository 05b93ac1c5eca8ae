"""From a committed batch's rows to the tensors that the losses take.

A batch that is not what training expects is refused here, whole: nothing is filled in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from losses import group_advantages

TEACHER_FIELDS = ("teacher_log_probs", "teacher_topk_ids", "teacher_topk_log_probs")


class BatchRefused(Exception):
    """The rows can't be trained on; the message says why, and which row is the first."""


@dataclass(frozen=True)
class Tokens:
    """S samples with N response tokens in all; K teacher tokens at each.

    ids [S, T]: prompt and response, padded on the right. rows, places [N]: where in ``ids`` each response
    token stands. targets [N]: the token. All others [N] or [N, K] are of that token; advantages its sample's.
    """

    ids: Tensor
    rows: Tensor
    places: Tensor
    targets: Tensor
    advantages: Tensor
    rollout_log_probs: Tensor
    teacher_log_probs: Tensor
    teacher_ids: Tensor
    teacher_topk_log_probs: Tensor

    def __len__(self) -> int:
        return len(self.targets)


def check_rows(rows: Sequence[Mapping[str, Any]], version: str) -> None:
    """Refuse rows that lack a teacher's field or a reward, or were sampled by other weights than ``version``.

    Raises:
        BatchRefused: with the first such row.
    """
    if not rows:
        raise BatchRefused("the batch has no rows")
    for row in rows:
        name, length = row["sample_id"], len(row["response_ids"])
        for field in (*TEACHER_FIELDS, "rollout_log_probs"):
            if row.get(field) is None:
                raise BatchRefused(
                    f"{name} has no {field}; the job needs a teacher role with top_k above 0 in its options"
                )
            if len(row[field]) != length or not np.isfinite(row[field]).all():
                raise BatchRefused(f"{name}: {field} must be {length} finite rows, found {row[field]!r:.80}")
        if not isinstance(row["reward"], Mapping):
            raise BatchRefused(f"{name}: rewards by name are expected, found {row['reward']!r}")
        if row["weight_version"] != version:
            raise BatchRefused(
                f"{name} was sampled with weights {row['weight_version']!r}, the policy is at {version!r}"
            )


def total_rewards(rows: Sequence[Mapping[str, Any]], weights: Mapping[str, float]) -> Tensor:
    """Return each sample's weighted sum of rewards, [S].

    Raises:
        BatchRefused: a row lacks one of the rewards that ``weights`` names.
    """
    for row in rows:
        if missing := weights.keys() - row["reward"].keys():
            raise BatchRefused(
                f"{row['sample_id']} has no reward {min(missing)!r}; it has {', '.join(row['reward'])}"
            )
    return torch.tensor(
        [sum(weight * row["reward"][name] for name, weight in weights.items()) for row in rows],
        dtype=torch.float32,
    )


def advantages_of(rows: Sequence[Mapping[str, Any]], weights: Mapping[str, float]) -> Tensor:
    """Return the advantage of each sample within its group, [S]."""
    return group_advantages(total_rewards(rows, weights), [row["group_id"] for row in rows])


def to_tokens(rows: Sequence[Mapping[str, Any]], advantages: Tensor, device: torch.device) -> Tokens:
    """Lay rows out as tensors on ``device``; ``advantages`` [S] are the rows'."""
    sequences = [np.concatenate([row["prompt_ids"], row["response_ids"]]) for row in rows]
    ids = np.zeros((len(rows), max(map(len, sequences))), dtype=np.int64)
    for index, sequence in enumerate(sequences):
        ids[index, : len(sequence)] = sequence
    lengths = [len(row["response_ids"]) for row in rows]
    index = np.repeat(np.arange(len(rows)), lengths)
    places = [len(row["prompt_ids"]) + np.arange(length) for row, length in zip(rows, lengths, strict=True)]

    def joined(field: str, dtype: type[np.generic]) -> Tensor:
        return torch.from_numpy(np.concatenate([row[field] for row in rows]).astype(dtype)).to(device)

    return Tokens(
        ids=torch.from_numpy(ids).to(device),
        rows=torch.from_numpy(index).to(device),
        places=torch.from_numpy(np.concatenate(places)).to(device),
        targets=joined("response_ids", np.int64),
        advantages=advantages.to(device)[torch.from_numpy(index).to(device)],
        rollout_log_probs=joined("rollout_log_probs", np.float32),
        teacher_log_probs=joined("teacher_log_probs", np.float32),
        teacher_ids=joined("teacher_topk_ids", np.int64),
        teacher_topk_log_probs=joined("teacher_topk_log_probs", np.float32),
    )
