"""Prompt files to prompts: JSON lines, Parquet, and Hugging Face datasets saved on disk.

JSON lines: one object a line, blank lines are skipped. Every problem of a file is reported at once, with its
line or row. Which prompts a batch takes is for :mod:`rolecall.batches.prompts_order` to say.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rolecall.batches.prompts_order import PromptSource, pick_prompts
from rolecall.batches.prompts_records import FIELDS, Problem, collect_prompts, picked, whole
from rolecall.batches.prompts_tables import is_table, table_rows
from rolecall.batches.sample import Prompt
from rolecall.config.specs import BatchSection
from rolecall.errors import ConfigError, ConfigProblem

__all__ = ["PromptSource", "load_prompts", "open_prompts", "pick_prompts"]


def open_prompts(settings: BatchSection, file: Path) -> PromptSource:
    """Return the prompts of a job's ``[batch]``; ``file`` is the job file.

    Raises:
        ConfigError: see :func:`load_prompts`.
    """
    return PromptSource(
        prompts=load_prompts(file.parent / settings.prompts, settings.columns),
        per_batch=settings.prompts_per_batch,
        shuffle_seed=settings.shuffle_seed,
    )


def load_prompts(path: Path, columns: Mapping[str, str] | None = None) -> tuple[Prompt, ...]:
    """Read a prompt file. A record without ``id`` is called after its place (``line-7``, ``row-7``).

    columns: prompt's field → what the file calls it, for files that were not written for this; ``a.b`` is
        ``b`` inside ``a``. Fields that it does not name are not read. None: they have their own names.

    Raises:
        ConfigError: the file can't be read, is empty, or has wrong records: all of them.
    """
    if columns is not None:
        _check_columns(path, columns)
    if is_table(path):
        return collect_prompts(path, table_rows(path, columns))
    return collect_prompts(path, _lines(path, columns))


def _lines(path: Path, columns: Mapping[str, str] | None) -> Iterator[tuple[str, Any, Problem]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([whole(path, f"can't be read: {error}")]) from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue

        def problem(message: str, key: str, number: int = number) -> ConfigProblem:
            return ConfigProblem(file=str(path), key=key, message=message, line=number)

        try:
            record: Any = json.loads(line)
        except ValueError as error:
            record = problem(f"is not JSON: {error}", "")
        if columns is not None and isinstance(record, dict):
            record = picked(record, columns)
        yield f"line-{number}", record, problem


def _check_columns(path: Path, columns: Mapping[str, str]) -> None:
    unknown = sorted(columns.keys() - set(FIELDS))
    if unknown:
        raise ConfigError(
            [whole(path, f'columns: "{unknown[0]}" is no field of a prompt. Fields: {", ".join(FIELDS)}')]
        )
    if "prompt" not in columns:
        raise ConfigError([whole(path, "columns: must say which one is the prompt")])
