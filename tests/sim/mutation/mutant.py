"""One deliberate bug: a piece of one function's source replaced, in memory and for a while.

The function object stays the same one and only its code is exchanged. So whoever imported it meets the bug,
and nothing is left of it afterwards.
"""

from __future__ import annotations
import __future__

import inspect
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from textwrap import dedent
from types import FunctionType
from typing import Any

from attrs import frozen


@frozen(kw_only=True)
class Mutant:
    """A bug.

    guard: what protects from it, in a few words.
    where: the function, ``leases.ledger:Ledger.start``, below ``rolecall``.
    old, new: what is replaced in its source, where it stands once.
    other: the test that notices it, for what the simulation has no part of.
    """

    guard: str
    where: str
    old: str
    new: str
    other: str | None = None

    @property
    def part(self) -> str:
        """The module that it is in, by its short name."""
        return self.where.partition(":")[0].rpartition(".")[2]

    @contextmanager
    def applied(self) -> Generator[None]:
        """Have the bug for the length of the block.

        Raises:
            LookupError: there is no such function, or ``old`` does not stand in it exactly once.
        """
        function = self.function()
        sound = function.__code__
        function.__code__ = self._broken(function)
        try:
            yield
        finally:
            function.__code__ = sound

    def function(self) -> FunctionType:
        """The function that has the bug, or would."""
        module, _, path = self.where.partition(":")
        found: Any = import_module(f"rolecall.{module}")
        for name in path.split("."):
            if name not in vars(found):
                raise LookupError(f"{self.guard}: there is no {self.where}")
            found = vars(found)[name]
        found = found.fget if isinstance(found, property) else inspect.unwrap(found)
        assert isinstance(found, FunctionType)
        return found

    def _broken(self, function: FunctionType) -> Any:
        source = dedent(inspect.getsource(function))
        if (times := source.count(self.old)) != 1:
            raise LookupError(f"{self.guard}: {self.old!r} stands {times} times in {self.where}")
        made: dict[str, Any] = {}
        text = source.replace(self.old, self.new)
        flags = __future__.annotations.compiler_flag
        code = compile(text, f"<{self.where}, broken>", "exec", flags=flags, dont_inherit=True)
        exec(code, dict(function.__globals__), made)
        (broken,) = made.values()
        broken = broken.fget if isinstance(broken, property) else inspect.unwrap(broken)
        return broken.__code__
