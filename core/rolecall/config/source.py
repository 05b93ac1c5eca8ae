"""The file that values came from: turns a key path and a message into a :class:`ConfigProblem`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

from attrs import field, frozen

from rolecall.config.lines import KeyLines, KeyPath
from rolecall.errors import ConfigError, ConfigProblem

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


@frozen(kw_only=True)
class Fault:
    """One thing wrong with the value at ``path``, in words; says nothing about the file."""

    path: KeyPath
    message: str

    def under(self, parent: KeyPath) -> Fault:
        return Fault(path=(*parent, *self.path), message=self.message)


@frozen(kw_only=True)
class Source:
    """One file: its name as the user wrote it and, where they are known, the lines of its keys.

    ``origins``: where keys come from that are not the file's own (:mod:`rolecall.config.overrides`).
    """

    file: str
    lines: KeyLines = field(factory=KeyLines)
    origins: Mapping[KeyPath, str] = field(factory=dict)

    def error(self, faults: Iterable[Fault]) -> ConfigError:
        """Return one error with a problem for each fault, in the order of the file."""
        problems = [self._problem(fault) for fault in faults]
        return ConfigError(sorted(problems, key=lambda problem: problem.line or 0))

    def _problem(self, fault: Fault) -> ConfigProblem:
        ancestors = (fault.path[:length] for length in range(len(fault.path), 0, -1))
        origin = next((self.origins[path] for path in ancestors if path in self.origins), None)
        return ConfigProblem(
            file=origin or self.file,
            key=key_text(fault.path),
            message=fault.message,
            line=None if origin else self.lines.nearest_line(fault.path),
        )


def key_text(path: KeyPath) -> str:
    """Return the path as TOML writes it: ``roles.judge.models."Qwen/Qwen3".replicas``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            key = part if _BARE_KEY.fullmatch(part) else json.dumps(part, ensure_ascii=False)
            text += f".{key}" if text else key
    return text
