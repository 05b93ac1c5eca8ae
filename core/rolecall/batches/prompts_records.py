"""From one record of a prompt file, of whatever format, to a prompt; everything that is wrong with it.

A record is a dict: ``prompt`` (text), and optionally ``id``, ``answer``, ``data_source`` (text), ``metadata``
(an object), ``image_data``, ``video_data`` and ``audio_data`` (text, or a list of it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from rolecall.batches.sample import MEDIA, Prompt
from rolecall.errors import ConfigError, ConfigProblem

FIELDS = ("id", "prompt", "answer", "data_source", "metadata", *MEDIA)
"""What a prompt may have, as records name it."""

Problem = Callable[[str, str], ConfigProblem]
"""Called as ``problem(message, key)``; knows the record's place."""


def collect_prompts(path: Path, records: Iterable[tuple[str, Any, Problem]]) -> tuple[Prompt, ...]:
    """Return the prompts of all records, each given as (name of its place, record, problem).

    A record without ``id`` is called after its place. A record that is a :class:`ConfigProblem` could not be
    read.

    Raises:
        ConfigError: with every problem of every record, or there are no prompts.
    """
    problems: list[ConfigProblem] = []
    prompts: dict[str, tuple[str, Prompt]] = {}
    for place, record, problem in records:
        if isinstance(record, ConfigProblem):
            problems.append(record)
            continue
        prompt = _prompt(place, record, problem, problems)
        if prompt is None:
            continue
        if prompt.prompt_id in prompts:
            first = prompts[prompt.prompt_id][0].replace("-", " ")
            problems.append(problem(f'id "{prompt.prompt_id}" is already that of {first}', "id"))
        prompts.setdefault(prompt.prompt_id, (place, prompt))
    if not prompts and not problems:
        problems.append(whole(path, "holds no prompts"))
    if problems:
        raise ConfigError(problems)
    return tuple(prompt for _, prompt in prompts.values())


def whole(path: Path, message: str) -> ConfigProblem:
    """Return a problem of the file as a whole."""
    return ConfigProblem(file=str(path), key="", message=message)


def picked(record: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """Return a prompt's fields out of a record that names them otherwise; ``a.b`` is ``b`` inside ``a``.

    What is not there, or None, is left out.
    """
    fields: dict[str, Any] = {}
    for field, column in columns.items():
        value: Any = record
        for step in [column] if column in record else column.split("."):
            value = cast("Mapping[str, Any]", value).get(step) if isinstance(value, Mapping) else None
        if value is not None:
            fields[field] = value
    return fields


def _prompt(place: str, record: Any, problem: Problem, problems: list[ConfigProblem]) -> Prompt | None:
    """Return the record's prompt, or None after noting what is wrong with it."""
    if not isinstance(record, dict):
        problems.append(problem(f"must be an object, found {record!r:.60}", ""))
        return None
    fields = cast("dict[str, Any]", record)
    wrong = [*_unknown_keys(fields), *_wrong_values(fields)]
    problems.extend(problem(message, key) for key, message in wrong)
    if wrong:
        return None
    return Prompt(
        prompt_id=fields.get("id", place),
        text=fields["prompt"],
        answer=fields.get("answer"),
        data_source=fields.get("data_source"),
        metadata=fields.get("metadata") or {},
        media={name: fields[name] for name in MEDIA if fields.get(name) is not None},
    )


def _unknown_keys(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    wrong: list[tuple[str, str]] = []
    for key in record.keys() - set(FIELDS):
        near = get_close_matches(key, FIELDS, n=1)
        hint = f'; did you mean "{near[0]}"?' if near else "."
        wrong.append((key, f"is unknown{hint} Allowed: {', '.join(FIELDS)}"))
    return sorted(wrong)


def _wrong_values(record: Mapping[str, Any]) -> list[tuple[str, str]]:
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
    for key in MEDIA:
        if (value := record.get(key)) is not None and not _is_media(value):
            wrong.append(
                (key, f"must be text (a URL, a path or base64) or a list of it, found {value!r:.60}")
            )
    return wrong


def _is_media(value: Any) -> bool:
    parts = cast("Sequence[Any]", value) if isinstance(value, list) else [value]
    return bool(parts) and all(isinstance(part, str) and part for part in parts)
