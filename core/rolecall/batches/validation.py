"""What must be true of samples and scores before a batch may be published.

Generic rules only: completeness, finiteness, sane types. What a role's fields must look like
(lengths, paddings, ids) is checked by the stage that makes them, in the role's plugin. Nothing
here repairs anything; every fault is a :class:`~rolecall.errors.ScoringError` that names the
stage, the sample and the field.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from rolecall.batches.finite import is_finite_number
from rolecall.batches.sample import Prompt, Sample, Scores
from rolecall.errors import ScoringError
from rolecall.interfaces.role import Stage

_ARRAY_KINDS = "biuf"
"""NumPy kinds a score array may have: bool, int, unsigned, float. Anything else can't be stored
and read back by every sink."""


def check_generated(
    samples: Sequence[Sample], prompts: Sequence[Prompt], samples_per_prompt: int, stage: str
) -> None:
    """Check what generation made: complete groups only, in prompt order, nothing twice.

    Raises:
        ScoringError: names the sample or the group.
    """
    if not samples:
        raise ScoringError(f"{stage}: no samples were made for {len(prompts)} prompts")
    if len({id(sample) for sample in samples}) != len(samples):
        raise ScoringError(f"{stage}: one sample object was returned twice")
    _refuse_repeats(stage, "sample id", [sample.sample_id for sample in samples])
    _check_groups(samples, prompts, samples_per_prompt, stage)
    for sample in samples:
        _check_sample(sample, stage)


def _refuse_repeats(stage: str, what: str, values: Sequence[str]) -> None:
    repeated = sorted(value for value, count in Counter(values).items() if count > 1)
    if repeated:
        raise ScoringError(f'{stage}: {what} "{repeated[0]}" was used {values.count(repeated[0])} times')


def _check_groups(
    samples: Sequence[Sample], prompts: Sequence[Prompt], samples_per_prompt: int, stage: str
) -> None:
    sizes = Counter(sample.group_id for sample in samples)
    known = dict.fromkeys(prompt.prompt_id for prompt in prompts)
    for group, size in sizes.items():
        if group not in known:
            raise ScoringError(f'{stage}: group "{group}" belongs to no prompt of this batch')
        if size != samples_per_prompt:
            raise ScoringError(
                f'{stage}: group "{group}" has {size} of {samples_per_prompt} samples; '
                "only complete groups may be staged"
            )
    expected = [group for group in known if group in sizes for _ in range(samples_per_prompt)]
    if [sample.group_id for sample in samples] != expected:
        raise ScoringError(f"{stage}: samples are not in the order of their prompts")


def _check_sample(sample: Sample, stage: str) -> None:
    where = f'{stage}: sample "{sample.sample_id}"'
    if sample.scores:
        raise ScoringError(f"{where}: has scores before any stage ran: {', '.join(sorted(sample.scores))}")
    if not sample.prompt_ids:
        raise ScoringError(f"{where}: has no prompt token ids")
    if len(sample.response_ids) != len(sample.rollout_log_probs):
        raise ScoringError(
            f"{where}: has {len(sample.response_ids)} response tokens "
            f"and {len(sample.rollout_log_probs)} log-probabilities"
        )
    if not all(math.isfinite(value) for value in sample.rollout_log_probs):
        raise ScoringError(f"{where}: rollout_log_probs has a value that is not finite")


def check_scores(stage: Stage, samples: Sequence[Sample], scores: Scores) -> None:
    """Check that a stage returned every declared field, and no other, for every sample.

    Raises:
        ScoringError: names the sample and the field.
    """
    asked = {sample.sample_id for sample in samples}
    missing, unasked = sorted(asked - scores.keys()), sorted(scores.keys() - asked)
    if missing:
        raise ScoringError(
            f'stage "{stage.name}": {len(missing)} of {len(asked)} samples were not scored, '
            f'first "{missing[0]}"'
        )
    if unasked:
        raise ScoringError(f'stage "{stage.name}": scored "{unasked[0]}", which it was not given')
    for sample_id, fields in scores.items():
        if fields is not None:
            _check_fields(stage, sample_id, fields)


def _check_fields(stage: Stage, sample_id: str, fields: Mapping[str, Any]) -> None:
    where = f'stage "{stage.name}": sample "{sample_id}"'
    missing, extra = sorted(stage.writes - fields.keys()), sorted(fields.keys() - stage.writes)
    if missing:
        raise ScoringError(f'{where}: field "{missing[0]}" is declared but was not written')
    if extra:
        raise ScoringError(f'{where}: field "{extra[0]}" was written but is not declared')
    for name, value in fields.items():
        problem = _value_problem(value)
        if problem:
            raise ScoringError(f'{where}: field "{name}" {problem}')


def _value_problem(value: Any) -> str:
    """Say what is wrong with a field's value, empty if nothing is."""
    if isinstance(value, np.ndarray):
        return _array_problem(cast("np.ndarray[Any, Any]", value))
    if isinstance(value, str):
        return ""
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        wrong = [(key, part) for key, part in items if not isinstance(key, str) or not is_finite_number(part)]
        return f"has {wrong[0][0]!r}: {wrong[0][1]!r}, not a name with a finite number" if wrong else ""
    if is_finite_number(value):
        return ""
    return (
        f"is {value!r:.80} ({type(value).__name__}): neither finite number, text, dict of numbers nor array"
    )


def _array_problem(array: np.ndarray[Any, Any]) -> str:
    if array.dtype.kind not in _ARRAY_KINDS:
        return f"is an array of {array.dtype}; only bool, integer and float arrays can be stored"
    finite = np.isfinite(array)
    if not finite.all():
        return f"has {int((~finite).sum())} of {array.size} values that are not finite"
    return ""
