"""The confined child: takes one program and its tests from stdin, runs them, sends one verdict.

Only the standard library. The verdict goes through what was the child's standard output and begins with a
nonce from stdin; the program's own standard output is its standard error. So nothing that a program prints,
and no exit code, can be taken for a verdict, and a program that ends early leaves none. What is needed after
the program has run is bound before: a program may have put other things into ``builtins``.
"""

from __future__ import annotations

import json
import os
import sys
import types
from typing import Any

from rolecall_verifier.confinement import ConfinementError, confine

_MESSAGE_CHARACTERS = 300


def main() -> None:
    """Run what stdin asks for; never returns."""
    order = json.load(sys.stdin)
    # The program gets neither of these: its output goes elsewhere, its input is empty.
    channel = os.dup(1)
    os.dup2(2, 1)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    write, leave, encode = os.write, os._exit, json.dumps
    nonce: str = order.pop("nonce")
    try:
        confine(os.getcwd(), order["limits"])
    except (ConfinementError, OSError, ValueError) as error:
        verdict: dict[str, Any] = {"refused": f"{error}"}
    else:
        verdict = _verdict(order["program"], order["tests"])
    told = f"{nonce} {encode(verdict)}".encode()
    while told:
        told = told[write(channel, told) :]
    leave(0)


def _verdict(program: str, tests: list[str]) -> dict[str, Any]:
    """Run the program, then each test in its module; a test fails by raising anything."""
    module = types.ModuleType("program")
    for name in [name for name in sys.modules if name.partition(".")[0] == __package__]:
        del sys.modules[name]
    sys.modules["program"] = module
    places = range(len(tests))
    build, run, words = compile, exec, _words

    def raised(source: str, name: str) -> str:
        """Return what running ``source`` raised, empty if it ran to its end."""
        try:
            run(build(source, name, "exec"), module.__dict__)
        except BaseException as error:  # noqa: BLE001 - a program may raise anything, SystemExit, too
            return words(error)
        return ""

    if problem := raised(program, "<program>"):
        return {"error": problem, "failures": []}
    failures: list[tuple[int, str]] = []
    for place in places:
        if problem := raised(tests[place], f"<test {place}>"):
            failures.append((place, problem))
    return {"error": None, "failures": failures}


def _words(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 - its own __str__ is the program's, too
        text = "(its text can't be had)"
    name = type(error).__name__
    return f"{name}: {text}"[:_MESSAGE_CHARACTERS] if text else name
