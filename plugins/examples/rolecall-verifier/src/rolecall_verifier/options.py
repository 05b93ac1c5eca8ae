"""``[roles.verifier.options]``."""

from __future__ import annotations

import re
from typing import Any

from attrs import Attribute, field, frozen, validators

_positive: Any = validators.gt(0)


def _names_a_field(_: Any, attribute: Attribute[str], value: str) -> None:
    if value != "answer" and not re.fullmatch(r"metadata\.\S+", value):
        raise ValueError(f'{attribute.name} must be "answer" or "metadata.<key>", found "{value}"')


@frozen(kw_only=True)
class VerifierOptions:
    """Where the tests are, and what one program may use.

    tests: the prompt's field that holds its tests: ``answer``, or ``metadata.<key>``. It is text, or a
        list of texts; each text is Python that raises if the program is wrong.
    concurrency: programs that run at once in one process.
    wall_s: seconds from start to verdict.
    cpu_s: processor seconds.
    memory_bytes: address space, the interpreter's own included.
    file_bytes: size of one file in the program's folder.
    open_files: open files and pipes.
    output_bytes: how much of what it prints is kept; the rest is read and thrown away.
    """

    tests: str = field(default="metadata.tests", validator=_names_a_field)
    concurrency: int = field(default=4, validator=_positive)
    wall_s: float = field(default=10.0, validator=_positive)
    cpu_s: int = field(default=5, validator=_positive)
    memory_bytes: int = field(default=512 * 1024**2, validator=validators.ge(128 * 1024**2))
    file_bytes: int = field(default=1024**2, validator=_positive)
    open_files: int = field(default=32, validator=validators.ge(8))
    output_bytes: int = field(default=16 * 1024, validator=_positive)
