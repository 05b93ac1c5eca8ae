"""docs/reference/api.md is what its generator writes, and leaves nothing of rolecall.api out."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from rolecall import api
from rolecall.plugins import hookspecs
from rolecall.plugins.contract import PROTOCOLS, methods


@pytest.fixture(scope="module")
def generator(docs_script: Callable[[str], ModuleType]) -> Any:
    return docs_script("generate_api_reference")


@pytest.fixture(scope="module")
def shown(generator: Any) -> dict[str, ast.stmt]:
    """What the page's code defines, parsed."""
    blocks = re.findall(r"```python\n(.*?)```", generator.render(), re.DOTALL)
    defined: dict[str, ast.stmt] = {}
    for node in ast.parse("\n".join(blocks)).body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                defined[name] = node
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                defined[name] = node
            case _:
                assert isinstance(node, ast.Expr)
    return defined


def test_the_committed_page_is_the_generated_one(generator: Any) -> None:
    assert generator.PAGE.read_text(encoding="utf-8") == generator.render(), (
        "run: python docs/generate_api_reference.py"
    )


def test_every_exported_name_and_every_hook_is_on_the_page(shown: dict[str, ast.stmt]) -> None:
    hooks = {name for name in vars(hookspecs) if name.startswith("rolecall_")}
    assert shown.keys() == {*api.__all__, *hooks}


def test_signatures_are_those_of_the_running_code(shown: dict[str, ast.stmt]) -> None:
    for protocol in PROTOCOLS.values():
        node = shown[protocol.__name__]
        assert isinstance(node, ast.ClassDef)
        written = {
            part.name: part for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        for name in methods(protocol):
            parameters = inspect.signature(getattr(protocol, name)).parameters
            arguments = written[name].args
            assert [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)] == [
                *parameters
            ]
            assert ast.get_docstring(written[name]) == inspect.getdoc(getattr(protocol, name))
