"""docs/reference/errors.md is what its generator makes happen, and no refusal is left out."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest

from rolecall.plugins import blocking, contract, host


@pytest.fixture(scope="module")
def rendered(docs_script: Callable[[str], ModuleType]) -> tuple[str, str, set[tuple[str, int]]]:
    """The committed page, what the generator writes, and the lines of code that were run for it."""
    generator = docs_script("generate_errors_reference")
    watched = {module.__file__ for module in (blocking, contract, host)}
    lines: set[tuple[str, int]] = set()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in watched:
            return None
        lines.add((frame.f_code.co_filename, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        written = generator.render()
    finally:
        sys.settrace(before)
    return generator.PAGE.read_text(encoding="utf-8"), written, lines


def test_the_committed_page_is_the_generated_one(rendered: tuple[str, str, Any]) -> None:
    committed, written, _ = rendered
    assert committed == written, "run: python docs/generate_errors_reference.py"


@pytest.mark.parametrize("module", [blocking, contract, host])
def test_every_refusal_is_on_the_page(rendered: tuple[str, str, set[Any]], module: ModuleType) -> None:
    """Each ``raise`` and each fault that is yielded was reached while the page was written."""
    _, _, reached = rendered
    source = Path(module.__file__ or "").read_text(encoding="utf-8")
    missed = [
        ast.get_source_segment(source, node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Raise | ast.Yield)
        and not any(
            (module.__file__, line) in reached for line in range(node.lineno, (node.end_lineno or 0) + 1)
        )
    ]
    assert missed == []
