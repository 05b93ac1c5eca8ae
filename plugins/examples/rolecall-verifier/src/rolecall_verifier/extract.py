"""The program in a response, and the tests of a prompt."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast

from rolecall.api import Prompt, ScoringError

_BLOCK = re.compile(
    r"^[ \t]*```(?:python|python3|py)?[ \t]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE
)


def program_in(response: str) -> str | None:
    """Return the last fenced block of Python in a response, None if it has none.

    A block that was cut off by the end of the response counts.

    >>> program_in("First:\\n```python\\nx = 1\\n```\\nBetter:\\n```py\\nx = 2\\n```")
    'x = 2\\n'
    """
    blocks: list[str] = _BLOCK.findall(response)
    return blocks[-1] if blocks else None


def tests_of(prompt: Prompt, where: str) -> list[str]:
    """Return the tests that a prompt carries in its field ``where``.

    Raises:
        ScoringError: there are none, or something else is there.
    """
    found = prompt.answer if where == "answer" else prompt.metadata.get(where.removeprefix("metadata."))
    try:
        return checked_tests(found)
    except ValueError as error:
        raise ScoringError(f'prompt "{prompt.prompt_id}": {where} {error}') from error


def checked_tests(found: Any) -> list[str]:
    """Return tests given as one text or a list of texts.

    Raises:
        ValueError: it is neither, or empty; the message begins with a verb.
    """
    tests = [found] if isinstance(found, str) else found
    if not isinstance(tests, Sequence) or not tests:
        raise ValueError(f"must be a test or a list of tests, found {found!r:.80}")
    for test in cast("Sequence[Any]", tests):
        if not isinstance(test, str) or not test.strip():
            raise ValueError(f"has a test that is no text: {test!r:.80}")
    return list(cast("Sequence[str]", tests))
