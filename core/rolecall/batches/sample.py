"""Samples: what generation made, and the scores that stages add to it.

A sample is frozen. A stage returns the fields it computed; they are put on copies, and the
copies replace the originals only after every stage of the batch has finished and validated.

Lengths: P = prompt tokens, R = response tokens, K = top-k.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

ScoreFields = Mapping[str, Any]
"""Field name → value: a number, a dict of numbers, text, or a NumPy array."""

Scores = Mapping[str, ScoreFields | None]
"""Sample id → the fields a stage computed; None drops the sample from the batch (the reward's
``drop_sample`` policy), and is the only way a sample may leave."""


MEDIA = ("image_data", "video_data", "audio_data")
"""What a prompt may show beside its text, as the engines' native payload names it."""


@frozen(kw_only=True)
class Prompt:
    """One record of the prompt file.

    media: by its name in :data:`MEDIA`, as the engine's payload takes it: a URL, a path on the engine's
        node or base64, or a list of these.
    """

    prompt_id: str
    text: str
    answer: str | None = None
    data_source: str | None = None
    metadata: Mapping[str, Any] = field(factory=dict)
    media: Mapping[str, Any] = field(factory=dict)


@frozen(kw_only=True, eq=False)
class Sample:
    """One response to one prompt.

    Attributes:
        sample_id: unique in the batch.
        group_id: the prompt's id; all samples of one prompt form a group.
        prompt_ids: P token ids.
        response_ids: R token ids, exactly as the engine returned them.
        rollout_log_probs: R log-probabilities of ``response_ids`` under the sampling weights; none in
            an evaluation, which asks for none.
        finish_reason: the engine's word: ``stop`` or ``length``.
        weight_version: weights that sampled it, as the engine reported; None if it reports none.
        scores: fields written by stages (``reward``, ``teacher_log_probs`` …).
        rollout_topk_ids: for each of the R tokens the ids most probable under the sampling weights, best
            first; None unless generation asked for them.
    """

    sample_id: str
    group_id: str
    prompt: Prompt
    prompt_ids: tuple[int, ...]
    response: str
    response_ids: tuple[int, ...]
    rollout_log_probs: tuple[float, ...]
    finish_reason: str
    weight_version: str | None
    scores: ScoreFields = field(factory=dict)
    rollout_topk_ids: tuple[tuple[int, ...], ...] | None = None


def text_sample(prompt: Prompt, response: str) -> Sample:
    """Return a sample of which the text alone is known: for rewards, outside a batch. It has no token ids."""
    return Sample(
        sample_id=prompt.prompt_id,
        group_id=prompt.prompt_id,
        prompt=prompt,
        prompt_ids=(),
        response=response,
        response_ids=(),
        rollout_log_probs=(),
        finish_reason="stop",
        weight_version=None,
    )
