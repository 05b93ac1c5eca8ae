"""Print the flags that the installed SGLang's server takes, as a JSON list; null if there is no SGLang.

Run by path with the interpreter that has SGLang, and in its environment. SGLang is read, not imported:
importing its server arguments takes 10 s and more, reading them less than one. Only the standard library.

Releases write flags in two ways: as ``add_argument("--flag", …)``, and as annotated fields of the classes
that its argument parser is made from, where ``Arg(…)`` may give another name, more names, or none.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path

_SOURCES = ("server_args.py", "arg_groups/*.py", "arg_groups/fields/*.py")


def server_flags(package: Path) -> set[str]:
    """Return every flag that the sources of the package name, with its dashes."""
    flags: set[str] = set()
    for pattern in _SOURCES:
        for source in sorted((package / "srt").glob(pattern)):
            for node in ast.walk(ast.parse(source.read_bytes())):
                flags.update(_flags_of(node))
    return flags


def _flags_of(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Call) and _name(node.func) == "add_argument":
        yield from (text for text in map(_text, node.args) if text.startswith("--"))
    elif (
        isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and isinstance(node.annotation, ast.Subscript)
        and _name(node.annotation.value) in ("A", "Annotated")
    ):
        yield from _flags_of_field(node.target.id, node.annotation)


def _flags_of_field(field: str, annotation: ast.Subscript) -> Iterator[str]:
    arguments: dict[str, ast.expr] = {}
    for node in ast.walk(annotation):
        if isinstance(node, ast.Call) and _name(node.func) == "Arg":
            arguments |= {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg is not None}
    no_cli = arguments.get("no_cli")
    if isinstance(no_cli, ast.Constant) and no_cli.value:
        return
    named = arguments.get("cli_name")
    flag = (_text(named) if named is not None else "") or "--" + field.replace("_", "-")
    yield flag
    action = arguments.get("action")
    if action is not None and _name(action) == "BooleanOptionalAction":
        yield "--no-" + flag[2:]
    aliases = arguments.get("aliases")
    if isinstance(aliases, ast.List | ast.Tuple):
        yield from map(_text, aliases.elts)


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _text(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def main() -> None:
    spec = importlib.util.find_spec("sglang")
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    flags = sorted(server_flags(Path(places[0]))) if places else None
    json.dump(flags, sys.stdout)


if __name__ == "__main__":
    main()
