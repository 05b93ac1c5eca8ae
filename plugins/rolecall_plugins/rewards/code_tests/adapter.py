"""``code_tests``: the share of tests that the program in a response passes."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

from rolecall.api import ROLECALL_API, Prompt, RewardAdapter, Sample, ScoringClient, hookimpl

from .options import CodeTestsOptions
from .sandbox import Sandbox, Test

_log = logging.getLogger(__name__)

_BLOCK = re.compile(
    r"^[ \t]*```(?:python|python3|py)?[ \t]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE
)
_FORMS = ({"code"}, {"input", "output"})


class CodeTests:
    """Runs a program; what it may do there is told in ``docs/reference/rewards.md``."""

    name: ClassVar[str] = "code_tests"
    api_version: ClassVar[int] = ROLECALL_API
    options: ClassVar[type[CodeTestsOptions]] = CodeTestsOptions
    supports_deferred: ClassVar[bool] = True
    role: ClassVar[str | None] = None
    reads: ClassVar[frozenset[str]] = frozenset({"response", "prompt.answer", "prompt.metadata"})

    def __init__(self, options: CodeTestsOptions) -> None:
        self._options = options
        self._sandbox = Sandbox(options)

    async def score(self, sample: Sample, client: ScoringClient | None) -> float:
        """Return 0 to 1; a program that fails, crashes, hangs or is not there is worth 0.

        Raises:
            ValueError: the prompt has no tests, or something else is there.
            ScoringError: the sandbox can't work here, or broke.
        """
        del client
        options = self._options
        tests = tests_of(sample.prompt, options.tests)
        program = program_in(sample.response)
        if program is None:
            if options.needs_fence:
                return 0.0
            program = sample.response
        results = await self._sandbox.run(program, tests)
        for number, (outcome, detail) in enumerate(results):
            _log.debug('sample "%s", test %d: %s %s', sample.sample_id, number, outcome, detail)
        passed = sum(outcome == "passed" for outcome, _ in results)
        return passed / len(tests) if options.pays == "share" else float(passed == len(tests))


def program_in(response: str) -> str | None:
    """Return the last fenced block of Python in a response, None if it has none.

    A block that was cut off by the end of the response counts.

    >>> program_in("First:\\n```python\\nx = 1\\n```\\nBetter:\\n```py\\nx = 2\\n```")
    'x = 2\\n'
    """
    blocks: list[str] = _BLOCK.findall(response)
    return blocks[-1] if blocks else None


def tests_of(prompt: Prompt, where: str) -> list[Test]:
    """Return the tests that a prompt carries in its field ``where``.

    Raises:
        ValueError: there are none, or something else is there.
    """
    found = prompt.answer if where == "answer" else prompt.metadata.get(where.removeprefix("metadata."))
    tests = [found] if isinstance(found, str | Mapping) else found
    at = f'prompt "{prompt.prompt_id}": {where}'
    if not isinstance(tests, Sequence) or not tests:
        raise ValueError(f"{at} must be a test or a list of tests, found {found!r:.80}")
    return [_checked(test, at) for test in cast("Sequence[object]", tests)]


def _checked(test: object, at: str) -> Test:
    if isinstance(test, str) and test.strip():
        return {"code": test}
    if isinstance(test, Mapping):
        table = cast("Mapping[Any, Any]", test)
        if set(table) in _FORMS and all(isinstance(value, str) for value in table.values()):
            return table
    raise ValueError(
        f'{at} has {test!r:.80}; a test is text, which is Python, or {{"code": text}}, or '
        '{"input": text, "output": text}'
    )


@hookimpl
def rolecall_reward_adapter() -> type[RewardAdapter]:
    return CodeTests
