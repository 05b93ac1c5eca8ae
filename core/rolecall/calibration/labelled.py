"""Labelled verdicts: JSON lines to samples with a label.

One object a line: ``prompt``, ``response`` (text) and ``label``, and optionally ``id``, ``answer``,
``data_source`` (text) and ``metadata`` (an object). A label is a number, true or false (1 and 0), or a word
that the caller gives a worth. Blank lines are skipped; every problem is reported at once, with its line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from attrs import frozen

from rolecall.batches.sample import Prompt, Sample, text_sample
from rolecall.errors import ConfigError, ConfigProblem
from rolecall.nearest import did_you_mean

_TEXTS = ("prompt", "response")
_KEYS = ("id", *_TEXTS, "answer", "data_source", "metadata", "label")


@frozen(kw_only=True)
class Labelled:
    """One verdict that is known: what was answered, and what it is worth to whoever labelled it."""

    sample: Sample
    label: float


def load_labelled(path: Path, worths: Mapping[str, float]) -> tuple[Labelled, ...]:
    """Read a file of labelled verdicts.

    worths: word → what it is worth, for labels that are words; case does not count.

    Raises:
        ConfigError: the file can't be read, is empty, or has wrong lines: all of them.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([_problem(path, None, f"can't be read: {error}")]) from error
    folded = {word.casefold(): worth for word, worth in worths.items()}
    problems: list[ConfigProblem] = []
    labelled: dict[str, Labelled] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record: Any = json.loads(line)
        except ValueError as error:
            problems.append(_problem(path, number, f"is not JSON: {error}"))
            continue
        wrong = [_problem(path, number, message, key) for key, message in _faults(record, folded)]
        problems += wrong
        if wrong:
            continue
        one = _labelled(record, number, folded)
        if one.sample.sample_id in labelled:
            problems.append(_problem(path, number, f'"{one.sample.sample_id}" is there already', "id"))
        labelled[one.sample.sample_id] = one
    if not labelled and not problems:
        problems.append(_problem(path, None, "holds no labelled verdicts"))
    if problems:
        raise ConfigError(problems)
    return tuple(labelled.values())


def _problem(path: Path, line: int | None, message: str, key: str = "") -> ConfigProblem:
    return ConfigProblem(file=str(path), key=key, message=message, line=line)


def _faults(record: object, worths: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    if not isinstance(record, dict):
        yield "", f"must be an object, found {record!r:.60}"
        return
    values = cast("dict[str, Any]", record)
    for key in values:
        if key not in _KEYS:
            hint = did_you_mean(key, _KEYS) or "."
            yield key, f"is not a known key{hint} Allowed: {', '.join(_KEYS)}"
    for key in _TEXTS:
        if not isinstance(values.get(key), str):
            yield key, f"must be text, found {values.get(key)!r:.60}" if key in values else "is missing"
    for key in ("id", "answer", "data_source"):
        if values.get(key) is not None and not isinstance(values[key], str):
            yield key, f"must be text, found {values[key]!r:.60}"
    if not isinstance(values.get("metadata", {}), dict):
        yield "metadata", f"must be an object, found {values['metadata']!r:.60}"
    if "label" not in values:
        yield "label", "is missing"
    elif _worth(values["label"], worths) is None:
        words = f" or one of {', '.join(worths)}" if worths else ""
        yield (
            "label",
            f"must be a finite number{words}, found {values['label']!r:.60}; --worth gives a word one",
        )


def _worth(label: object, worths: Mapping[str, float]) -> float | None:
    if isinstance(label, str):
        return worths.get(label.casefold())
    if isinstance(label, int | float) and -1e300 < label < 1e300 and math.isfinite(label):
        return float(label)
    return None


def _labelled(record: Mapping[str, Any], number: int, worths: Mapping[str, float]) -> Labelled:
    name: str = record.get("id") or f"line-{number}"
    prompt = Prompt(
        prompt_id=name,
        text=record["prompt"],
        answer=record.get("answer"),
        data_source=record.get("data_source"),
        metadata=record.get("metadata", {}),
    )
    label = _worth(record["label"], worths)
    assert label is not None, "it has been checked"
    return Labelled(sample=text_sample(prompt, record["response"]), label=label)
