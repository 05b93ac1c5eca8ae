"""Write ``docs/reference/api.md`` from the sources of what ``rolecall.api`` exports.

    python docs/generate_api_reference.py

Shown is the code itself: signatures, fields and docstrings as they stand, bodies left out. A test holds the
committed page equal to what this writes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

CORE = Path(__file__).parent.parent / "core"
PAGE = Path(__file__).parent / "reference" / "api.md"
API = CORE / "rolecall" / "api" / "__init__.py"
HOOKS = "rolecall.plugins.hookspecs"

SECTIONS: Mapping[str, tuple[str, ...]] = {
    "Hooks": (HOOKS,),
    "Roles": (
        "rolecall.interfaces.role",
        "rolecall.interfaces.native_payload",
        "rolecall.interfaces.token_ids",
        "rolecall.client.role_client",
        "rolecall.interfaces.scale_endpoints",
    ),
    "Routing policies": ("rolecall.interfaces.routing_policy", "rolecall.routing.rendezvous"),
    "Routers of a policy": ("rolecall.interfaces.router",),
    "Placement modes": (
        "rolecall.interfaces.placement_mode",
        "rolecall.placement.plan",
        "rolecall.placement.nodes",
        "rolecall.placement.layout",
        "rolecall.placement.enough",
    ),
    "Reward adapters": (
        "rolecall.interfaces.reward_adapter",
        "rolecall.batches.sample",
        "rolecall.batches.rewards",
        "rolecall.batches.concurrency",
        "rolecall.config.nested_adapters",
    ),
    "Verdicts of judges": (
        "rolecall.verdicts.number",
        "rolecall.verdicts.word",
        "rolecall.verdicts.json_field",
        "rolecall.verdicts.yes_no",
    ),
    "Engine backends": (
        "rolecall.interfaces.engine_backend",
        "rolecall.processes.child_process",
        "rolecall.processes.bound_exec",
    ),
    "Batch sinks": ("rolecall.interfaces.batch_sink", "rolecall.durable_files"),
    "Observers": ("rolecall.interfaces.observer", "rolecall.events.event"),
    "A job asked from outside": ("rolecall.job.asked",),
    "Names": ("rolecall.ids",),
    "Errors": ("rolecall.errors",),
}
"""Heading → modules whose exported names stand under it, in their order."""

INTRODUCTION = """\
<!-- Written by docs/generate_api_reference.py from the sources of rolecall.api; edit there. -->

# The plugin surface

Everything that a plugin may import: `from rolecall.api import …`, and nothing else of rolecall. It is
shown as the code has it, without bodies. Importing it brings neither Ray nor an engine. How a plugin is
found and checked is told in [plugins](plugins.md), what its tests can use in [testing](testing.md).
"""


def render() -> str:
    """Return the whole page."""
    exported = exports()
    parts = [INTRODUCTION]
    for heading, modules in SECTIONS.items():
        parts.append(f"## {heading}\n")
        for module in modules:
            names = list(hooks()) if module == HOOKS else []
            names += [name for name, home in exported.items() if home == module]
            parts += [_block(module, names)] if names else []
    return "\n".join(parts)


def exports() -> dict[str, str]:
    """Return each exported name with the module that it comes from."""
    return {
        alias.asname or alias.name: node.module or ""
        for node in ast.walk(ast.parse(API.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def hooks() -> Iterator[str]:
    """Yield the names of the hook specifications."""
    for node in ast.parse(_source(HOOKS)).body:
        if isinstance(node, ast.FunctionDef):
            yield node.name


def _source(module: str) -> str:
    path = CORE.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return file.read_text(encoding="utf-8")


def _block(module: str, names: list[str]) -> str:
    source = _source(module)
    lines = source.splitlines()
    shown = [text for name, text in _definitions(ast.parse(source), lines) if name in names]
    if len(shown) != len(names):
        raise ValueError(f"{module} defines {len(shown)} of {names}")
    return "```python\n" + "\n\n".join(shown) + "\n```\n"


def _definitions(tree: ast.Module, lines: list[str]) -> Iterator[tuple[str, str]]:
    """Yield every name that a module defines and its code; the text after an assignment belongs to it."""
    for node, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name, "\n".join(_without_bodies(node, lines))
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                last = following if following is not None and _is_text(following) else node
                yield name, "\n".join(lines[node.lineno - 1 : last.end_lineno])
            case _:
                pass


def _without_bodies(node: ast.stmt, lines: list[str]) -> Iterator[str]:
    """Yield a definition's lines; of functions only what stands before their code."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        first = node.body[0]
        top = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        if _is_text(first):
            yield from lines[top - 1 : first.end_lineno]
        elif first.lineno == node.lineno:
            yield from lines[top - 1 : first.end_lineno]
            return
        else:
            yield from lines[top - 1 : first.lineno - 1]
        yield " " * first.col_offset + "..."
    elif isinstance(node, ast.ClassDef):
        yield from lines[node.lineno - 1 : node.body[0].lineno - 1]
        at = node.body[0].lineno - 1
        for member in node.body:
            decorators = getattr(member, "decorator_list", [])
            top = min([member.lineno, *(decorator.lineno for decorator in decorators)]) - 1
            if not _is_private(member):
                yield from lines[at:top] if not any(line.strip() for line in lines[at:top]) else []
                yield from _without_bodies(member, lines)
            at = member.end_lineno or at
    else:
        yield from lines[node.lineno - 1 : node.end_lineno]


def _is_private(member: ast.stmt) -> bool:
    names = [getattr(member, "name", "")]
    match member:
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            names.append(name)
        case _:
            pass
    return any(name.startswith("_") and name != "__init__" for name in names)


def _is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
