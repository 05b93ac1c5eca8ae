"""A sample that remembers what was read of it, by the names that ``reads`` uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from attrs import fields_dict

from rolecall.batches.sample import Prompt, Sample

FREE = frozenset({"sample_id", "group_id", "prompt.prompt_id"})
"""Ids, which anybody may read: they name the sample in messages and in affinity keys."""

_Tell = Callable[[str], None]
_SAMPLE_FIELDS = frozenset(fields_dict(Sample))
_PROMPT_FIELDS = frozenset(fields_dict(Prompt))


def watched(sample: Sample) -> tuple[Sample, set[str]]:
    """Return an equal sample and the set of names that grows as it is read."""
    names: set[str] = set()
    values = _values(sample, _SAMPLE_FIELDS)
    prompt = _values(sample.prompt, _PROMPT_FIELDS)
    prompt["metadata"] = _WatchedTable(prompt["metadata"], lambda key: names.add(f"prompt.metadata.{key}"))
    values["prompt"] = _WatchedPrompt(prompt, lambda name: names.add(f"prompt.{name}"))
    values["scores"] = _WatchedTable(values["scores"], names.add)
    return _WatchedSample(values, names.add), names


def undeclared(names: set[str], reads: frozenset[str]) -> list[str]:
    """Return what was read and is declared neither itself nor by what it is part of, sorted."""
    return sorted(name for name in names - FREE if not _covers(reads, name))


def _covers(reads: frozenset[str], name: str) -> bool:
    parts = name.split(".")
    return any(".".join(parts[:count]) in reads for count in range(1, len(parts) + 1))


def _values(holder: object, names: frozenset[str]) -> dict[str, Any]:
    return {name: getattr(holder, name) for name in names}


class _WatchedSample(Sample):
    def __init__(self, values: dict[str, Any], tell: _Tell) -> None:
        super().__init__(**values)
        object.__setattr__(self, "_tell", tell)

    def __getattribute__(self, name: str) -> Any:
        # Reading a part that is watched itself says nothing yet.
        if name in _SAMPLE_FIELDS - {"prompt", "scores"}:
            object.__getattribute__(self, "_tell")(name)
        return object.__getattribute__(self, name)


class _WatchedPrompt(Prompt):
    def __init__(self, values: dict[str, Any], tell: _Tell) -> None:
        super().__init__(**values)
        object.__setattr__(self, "_tell", tell)

    def __getattribute__(self, name: str) -> Any:
        if name in _PROMPT_FIELDS - {"metadata"}:
            object.__getattribute__(self, "_tell")(name)
        return object.__getattribute__(self, name)


class _WatchedTable(dict[str, Any]):
    """Tells of every key that is looked up or gone over."""

    def __init__(self, values: Any, tell: _Tell) -> None:
        super().__init__(values)
        self._tell = tell

    def __getitem__(self, key: str) -> Any:
        self._tell(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self._tell(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self._tell(str(key))
        return super().__contains__(key)

    def __iter__(self) -> Iterator[str]:
        for key in super().__iter__():
            self._tell(key)
            yield key

    def keys(self) -> Any:
        return list(iter(self))

    def values(self) -> Any:
        return [dict.__getitem__(self, key) for key in self]

    def items(self) -> Any:
        return [(key, dict.__getitem__(self, key)) for key in self]
