"""A layout as one line of text: read into values, or refused at the character that is wrong.

    maker[1/2] + judge.small[2] -> trainer[*]

A *term* is a role (``role.model`` for one of several models) with its share of the devices: ``[*]`` all,
``[1/2]`` a part, ``[4]`` that many. ``+`` puts terms side by side, ``->`` gives the same devices to what
follows, ``|`` gives what follows a pool of its own; ``+`` binds most, ``|`` least. Pure: nothing here knows
which roles there are or what becomes of them.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import NoReturn

from attrs import evolve, frozen

PIPE, THEN, BESIDE = "|", "->", "+"

_NAME = re.compile(r"""[A-Za-z0-9_]+(?:-+(?!>)[A-Za-z0-9_]+)*|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'""")
_SHARE = re.compile(r"\*|(?P<count>[0-9]{1,9})(?:\s*/\s*(?P<of>[0-9]{1,9}))?")
_OPERATOR = re.compile(r"\||->|\+")
_LONGEST_LINE = 72


class LayoutError(Exception):
    """A layout is wrong; ``messages`` has every fault that was found, each with the place it is at."""

    def __init__(self, messages: Iterable[str]) -> None:
        self.messages = tuple(messages)
        super().__init__("\n".join(self.messages))


@frozen(kw_only=True)
class Term:
    """One role's or model's share.

    share: a number of devices, or a part of the pool.
    at, model_at, share_at: where role, model and share stand in the text.
    after: the sign before it, which stands at ``after_at``; "" for the first one.
    """

    role: str
    model: str | None
    share: int | Fraction
    at: int
    model_at: int
    share_at: int
    after: str = ""
    after_at: int = 0

    @property
    def name(self) -> str:
        return self.role if self.model is None else f"{self.role}.{self.model}"


Step = tuple[Term, ...]
"""What is side by side."""


@frozen(kw_only=True)
class Layout:
    """Pools, each with the steps that take turns on it; nowhere empty."""

    text: str
    pools: tuple[tuple[Step, ...], ...]

    def steps(self) -> Iterator[Step]:
        for pool in self.pools:
            yield from pool

    def terms(self) -> Iterator[Term]:
        for step in self.steps():
            yield from step

    def fault(self, at: int, message: str) -> str:
        """Return a message that points at a character of the text."""
        return f"{message}\n{pointed(self.text, at)}"


def read_layout(text: str) -> Layout:
    """Read a layout.

    Raises:
        LayoutError: the text is none; has the first fault.
    """
    return _Reader(text).layout()


def pointed(text: str, at: int) -> str:
    """Return the line of the text that ``at`` is in, and below it a caret at that character.

    >>> print(pointed("a[1] + b[x]", 9))
        a[1] + b[x]
                 ^
    """
    start = text.rfind("\n", 0, at) + 1
    line, column = text[start:].split("\n", 1)[0], at - start
    if len(line) > _LONGEST_LINE:
        first = max(0, min(column - _LONGEST_LINE // 2, len(line) - _LONGEST_LINE))
        cut = line[first : first + _LONGEST_LINE]
        line = ("…" if first else "") + cut + ("…" if first + _LONGEST_LINE < len(line) else "")
        column += (1 if first else 0) - first
    line = re.sub(r"\s", " ", line)
    return f"    {line}\n    {' ' * sum(map(_cells, line[:column]))}^"


def _cells(character: str) -> int:
    """How many columns of a terminal a character takes."""
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


class _Reader:
    """Walks the text once from front to back."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def layout(self) -> Layout:
        pools: list[list[list[Term]]] = [[[self._term()]]]
        self._skip()
        while self._at < len(self._text):
            at = self._at
            sign = self._take(
                _OPERATOR, "a sign between two roles: + (side by side), -> (then) or | (apart)"
            )[0]
            term = evolve(self._term(), after=sign, after_at=at)
            if sign == PIPE:
                pools.append([[term]])
            elif sign == THEN:
                pools[-1].append([term])
            else:
                pools[-1][-1].append(term)
            self._skip()
        return Layout(text=self._text, pools=tuple(tuple(tuple(step) for step in steps) for steps in pools))

    def _term(self) -> Term:
        self._skip()
        at = model_at = self._at
        role = self._name("a role, as in maker[1/2]")
        model = None
        if self._found("."):
            model_at = self._at
            model = self._name("a model of the role, as in judge.small[1/2]")
        self._skip()
        if not self._found("["):
            self._fail("expected a share: [*] for all devices, [1/2] for a part, [4] for so many")
        self._skip()
        share_at = self._at
        share = self._share()
        self._skip()
        if not self._found("]"):
            self._fail("expected ] after the share")
        return Term(role=role, model=model, share=share, at=at, model_at=model_at, share_at=share_at)

    def _name(self, expected: str) -> str:
        raw = self._take(_NAME, expected)[0]
        try:
            return next(iter(tomllib.loads(f"{raw} = 0")))
        except tomllib.TOMLDecodeError:  # an escape that TOML does not know
            self._at -= len(raw)
            self._fail(f"expected {expected}")

    def _share(self) -> int | Fraction:
        start = self._at
        found = self._take(_SHARE, "a share: * for all devices, 1/2 for a part, 4 for so many")
        if found[0] == "*":
            return Fraction(1)
        count, of = int(found["count"]), found["of"]
        share = count if of is None else Fraction(count, int(of)) if int(of) else 0
        if share == 0 or (of is not None and share > 1):
            self._at = start
            wrong = "a part is more than nothing and at most all"
            self._fail(wrong if of else "a share is at least 1 device; a part is written as 1/2")
        return share

    # --- characters ---------------------------------------------------------------------------

    def _take(self, pattern: re.Pattern[str], expected: str) -> re.Match[str]:
        match = pattern.match(self._text, self._at)
        if match is None:
            end = "" if self._at < len(self._text) else ", but the layout ends here"
            self._fail(f"expected {expected}{end}")
        self._at = match.end()
        return match

    def _skip(self) -> None:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1

    def _found(self, token: str) -> bool:
        found = self._text.startswith(token, self._at)
        self._at += len(token) if found else 0
        return found

    def _fail(self, message: str) -> NoReturn:
        at = min(self._at, len(self._text.rstrip()))
        raise LayoutError([f"{message}\n{pointed(self._text, at)}"])
