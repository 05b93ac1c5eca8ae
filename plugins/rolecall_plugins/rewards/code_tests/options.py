"""``[rewards.<name>.options]`` of ``code_tests``."""

from __future__ import annotations

import re
from typing import Any, Literal

from attrs import Attribute, field, frozen, validators

_positive: Any = validators.gt(0)
_MIB = 1024**2

Pays = Literal["share", "all"]


def _names_a_field(_: Any, attribute: Attribute[str], value: str) -> None:
    if value != "answer" and not re.fullmatch(r"metadata\.\S+", value):
        raise ValueError(f'{attribute.name} must be "answer" or "metadata.<key>", found "{value}"')


@frozen(kw_only=True)
class CodeTestsOptions:
    """Where the tests are, what they pay, and what one of them may use.

    tests: the prompt's field that holds its tests: ``answer``, or ``metadata.<key>``.
    pays: ``share``: the share of the tests that passed. ``all``: 1 if all passed, else 0.
    needs_fence: a response without a fenced block has no program, which pays 0. False: it is the program.
    concurrency: programs that are tested at once.
    wall_s, cpu_s: seconds for one test, on the clock and of a processor.
    memory_bytes: address space of one test, the interpreter's own included.
    file_bytes: size of one file that it writes.
    open_files: open files and pipes.
    output_bytes: how much of what it prints is looked at; a test that compares output fails with more.
    require_landlock: whether a kernel without Landlock is an error; see ``docs/reference/rewards.md``.
    """

    tests: str = field(default="metadata.tests", validator=_names_a_field)
    pays: Pays = field(default="share", validator=validators.in_(("share", "all")))
    needs_fence: bool = True
    concurrency: int = field(default=4, validator=_positive)
    wall_s: float = field(default=10.0, validator=_positive)
    cpu_s: int = field(default=5, validator=_positive)
    memory_bytes: int = field(default=512 * _MIB, validator=validators.ge(128 * _MIB))
    file_bytes: int = field(default=_MIB, validator=_positive)
    open_files: int = field(default=32, validator=validators.ge(8))
    output_bytes: int = field(default=64 * 1024, validator=_positive)
    require_landlock: bool = True

    def limits(self) -> dict[str, float]:
        """Return what the supervisor and its children are told."""
        names = ("wall_s", "cpu_s", "memory_bytes", "file_bytes", "open_files", "output_bytes")
        return {
            **{name: getattr(self, name) for name in names},
            "require_landlock": int(self.require_landlock),
        }
