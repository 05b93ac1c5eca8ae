"""Prompt files: JSON lines to prompts, and which prompts a batch takes.

One object a line: ``prompt`` (text), and optionally ``id``, ``answer``, ``data_source`` (text) and
``metadata`` (an object). Blank lines are skipped. Every problem of a file is reported at once,
with its line.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from attrs import evolve

from rolecall.batches.sample import Prompt
from rolecall.errors import ConfigError, ConfigProblem
from rolecall.ids import BatchId

_KEYS = ("id", "prompt", "answer", "data_source", "metadata")


def load_prompts(path: Path) -> tuple[Prompt, ...]:
    """Read a prompt file. A line without ``id`` is called after its number (``line-7``).

    Raises:
        ConfigError: the file can't be read, is empty, or has wrong lines: all of them.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([_problem(path, None, f"can't be read: {error}")]) from error
    problems: list[ConfigProblem] = []
    prompts: dict[str, tuple[int, Prompt]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        prompt = _parse(path, number, line, problems)
        if prompt is None:
            continue
        if prompt.prompt_id in prompts:
            first = prompts[prompt.prompt_id][0]
            problems.append(
                _problem(path, number, f'id "{prompt.prompt_id}" is already that of line {first}', "id")
            )
        prompts.setdefault(prompt.prompt_id, (number, prompt))
    if not prompts and not problems:
        problems.append(_problem(path, None, "holds no prompts"))
    if problems:
        raise ConfigError(problems)
    return tuple(prompt for _, prompt in prompts.values())


def pick_prompts(prompts: Sequence[Prompt], batch: BatchId, count: int) -> tuple[Prompt, ...]:
    """Return the prompts of batch ``batch``: the next ``count`` of the file, from its start again
    after its end.

    A prompt that comes up again gets an id of its own (``arith-001#1``), so groups are distinct
    within a batch and over the whole job.
    """
    first = batch * count
    return tuple(_pick(prompts, index) for index in range(first, first + count))


def _pick(prompts: Sequence[Prompt], index: int) -> Prompt:
    turn, place = divmod(index, len(prompts))
    prompt = prompts[place]
    return prompt if turn == 0 else evolve(prompt, prompt_id=f"{prompt.prompt_id}#{turn}")


def _problem(path: Path, line: int | None, message: str, key: str = "") -> ConfigProblem:
    return ConfigProblem(file=str(path), key=key, message=message, line=line)


def _parse(path: Path, number: int, line: str, problems: list[ConfigProblem]) -> Prompt | None:
    """Return the line's prompt, or None after noting what is wrong with it."""
    try:
        parsed: Any = json.loads(line)
    except ValueError as error:
        problems.append(_problem(path, number, f"is not JSON: {error}"))
        return None
    if not isinstance(parsed, dict):
        problems.append(_problem(path, number, f"must be an object, found {line.strip()!r:.60}"))
        return None
    record = cast("dict[str, Any]", parsed)
    wrong = [*_unknown_keys(record), *_wrong_values(record)]
    problems.extend(_problem(path, number, message, key) for key, message in wrong)
    if wrong:
        return None
    return Prompt(
        prompt_id=record.get("id", f"line-{number}"),
        text=record["prompt"],
        answer=record.get("answer"),
        data_source=record.get("data_source"),
        metadata=record.get("metadata") or {},
    )


def _unknown_keys(record: dict[str, Any]) -> list[tuple[str, str]]:
    wrong: list[tuple[str, str]] = []
    for key in record.keys() - set(_KEYS):
        near = get_close_matches(key, _KEYS, n=1)
        hint = f'; did you mean "{near[0]}"?' if near else "."
        wrong.append((key, f"is unknown{hint} Allowed: {', '.join(_KEYS)}"))
    return sorted(wrong)


def _wrong_values(record: dict[str, Any]) -> list[tuple[str, str]]:
    wrong: list[tuple[str, str]] = []
    if "prompt" not in record:
        wrong.append(("prompt", "is missing"))
    for key in ("id", "prompt", "data_source"):
        value = record.get(key)
        absent = key not in record or (value is None and key == "data_source")
        if not absent and (not isinstance(value, str) or not value.strip()):
            wrong.append((key, f"must be text that is not empty, found {value!r:.60}"))
    answer = record.get("answer")
    if answer is not None and not isinstance(answer, str):
        wrong.append(("answer", f'must be text, found {answer!r:.60}; write numbers as "42"'))
    metadata = record.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        wrong.append(("metadata", f"must be an object, found {metadata!r:.60}"))
    return wrong
