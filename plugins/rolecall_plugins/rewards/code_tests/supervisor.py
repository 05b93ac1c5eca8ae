"""The supervisor: takes one program and its tests, runs each test in a child, tells what came of it.

A process of its own for each program. It is trusted and never runs the program itself: each test has a
forked child that confines itself first. So a program that crashes, hangs or leaves costs one test, while a
supervisor that ends without an answer is a fault of the sandbox.

stdin: one line of JSON, the order; it stays open, and its end means that nobody waits for the answer any
more. stdout: one line of JSON, ``{"results": [[outcome, detail], ...]}``, one for each test that was run, or
``{"refused": why}``. Children have neither of them.

A test is ``{"code": text}``, run in the module of the program; raising fails it. Or it is ``{"input": text,
"output": text}``: the program is run as ``__main__``, with that input, and has to print that output.

Only the standard library.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import signal
import sys
import time
import types
from collections.abc import Mapping
from typing import Any, NoReturn

from rolecall_plugins.rewards.code_tests.confinement import ConfinementError, confine

PASSED, FAILED, TIMEOUT, ENDED = "passed", "failed", "timeout", "ended"

_MESSAGE_CHARACTERS = 300
_TOLD_BYTES = 64 * 1024
_CHUNK = 64 * 1024
_CPU_SLACK_S = 0.2


class Refused(Exception):
    """The sandbox can't work here, or did not; that says nothing about the program."""


def main() -> None:
    """Do what stdin asks for."""
    order = json.loads(sys.stdin.readline())
    results: list[tuple[str, str]] = []
    answer: dict[str, Any] = {"results": results}
    try:
        for number, test in enumerate(order["tests"]):
            results.append(_run_test(order, test, number))
            if order["stop_at_first"] and results[-1][0] != PASSED:
                break
    except (Refused, OSError) as error:
        answer = {"refused": f"{error}"}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _run_test(order: Mapping[str, Any], test: Mapping[str, str], number: int) -> tuple[str, str]:
    """Run one test in a child and return outcome and detail."""
    folder = os.path.join(os.getcwd(), str(number))
    os.mkdir(folder, 0o700)
    nonce = secrets.token_hex(16)
    told_from, told_to = os.pipe()
    output_from, output_to = os.pipe()
    given = _input_file(folder, test.get("input", ""))
    supervisor = os.getpid()
    child = os.fork()
    if child == 0:
        _be_the_child(order, test, folder, nonce, (given, output_to, told_to), supervisor=supervisor)
    for end in (told_to, output_to, given):
        os.close(end)
    limits = order["limits"]
    try:
        read, stopped = _follow(child, {told_from: _TOLD_BYTES, output_from: limits["output_bytes"]}, limits)
    finally:
        os.close(told_from)
        os.close(output_from)
    _, status, usage = os.wait4(child, 0)
    if stopped:
        return TIMEOUT, f"it was stopped after {limits['wall_s']:g} s"
    told = _told(read[told_from], nonce)
    if "refused" in told:
        raise Refused(f"programs can't be confined here: {told['refused']}")
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGKILL and usage.ru_utime + usage.ru_stime < limits["cpu_s"] - _CPU_SLACK_S:
        # Neither this process nor its limit of processor time, and it can signal nobody, itself neither.
        raise Refused("a test's process was killed from outside; has the machine run out of memory?")
    if told.get("problem"):
        return FAILED, told["problem"]
    if "output" in test:
        if code != 0:
            return ENDED, _ending(code)
        return _compared(read[output_from], test["output"], limits["output_bytes"])
    return (PASSED, "") if told else (ENDED, f"{_ending(code)} before the test was done")


def _input_file(folder: str, text: str) -> int:
    """Return a descriptor that reads the text; a pipe would wait for a program that does not read."""
    path = os.path.join(folder, "input")
    with open(path, "w", encoding="utf-8", errors="replace") as file:
        file.write(text)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    os.unlink(path)
    return descriptor


def _follow(
    child: int, most: Mapping[int, int], limits: Mapping[str, Any]
) -> tuple[dict[int, bytearray], bool]:
    """Read until the child has closed both pipes, by its end at the latest; kill it when its time is up.

    Everything is read, so that nobody waits for room; the first ``most`` bytes and one are kept.
    """
    read = {pipe: bytearray() for pipe in most}
    deadline = time.monotonic() + limits["wall_s"]
    poll = select.poll()
    for pipe in most:
        poll.register(pipe, select.POLLIN)
    poll.register(0, select.POLLHUP)
    left, stopped = set(most), False
    while left:
        # Once it is killed its pipes close when the kernel is done with it, however long that takes.
        events = poll.poll(None if stopped else max(deadline - time.monotonic(), 0) * 1000)
        if not events:
            os.kill(child, signal.SIGKILL)
            stopped = True
        for ready, event in events:
            if ready == 0:
                if event & (select.POLLHUP | select.POLLERR):
                    os.kill(child, signal.SIGKILL)
                    os._exit(1)
                continue
            chunk = os.read(ready, _CHUNK)
            if not chunk:
                poll.unregister(ready)
                left.discard(ready)
            read[ready] += chunk[: max(0, most[ready] + 1 - len(read[ready]))]
    return read, stopped


def _told(told: bytes | bytearray, nonce: str) -> dict[str, Any]:
    """Return what the child's own code told, empty if nothing."""
    head, _, rest = bytes(told).partition(b" ")
    if not secrets.compare_digest(head, nonce.encode()):
        return {}
    try:
        return json.loads(rest)
    except ValueError:
        return {}


def _compared(output: bytes | bytearray, wanted: str, most: int) -> tuple[str, str]:
    """Lines are compared without blanks at their ends, and without empty ones at the end."""
    if len(output) > most:
        return FAILED, f"it printed more than {most} bytes"
    printed = _lines(output.decode(errors="replace"))
    if printed == _lines(wanted):
        return PASSED, ""
    return FAILED, f"it printed {printed!r:.{_MESSAGE_CHARACTERS}}"


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _ending(code: int) -> str:
    if code >= 0:
        return f"it ended with exit code {code}"
    try:
        return f"it was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"it was ended by signal {-code}"


# --- the child ----------------------------------------------------------------------------


def _be_the_child(
    order: Mapping[str, Any],
    test: Mapping[str, str],
    folder: str,
    nonce: str,
    descriptors: tuple[int, int, int],
    *,
    supervisor: int,
) -> NoReturn:
    """Confine this process, run program and test, tell how it went. Never returns, nor raises.

    What is needed after the program has run is bound before: it may have put other things into
    ``builtins``.
    """
    write, leave, encode = os.write, os._exit, json.dumps
    channel = -1
    try:
        given, output, told_to = descriptors
        channel = _only_these(given, output, told_to, keeps_errors="output" not in test)
        os.chdir(folder)
        confine(folder, order["limits"])
        if os.getppid() != supervisor:
            leave(1)  # the supervisor died before this process was bound to it
    except BaseException as error:  # noqa: BLE001 - nothing may get from here into the supervisor's code
        words = f"{error}" if isinstance(error, ConfinementError) else f"{type(error).__name__}: {error}"
        if channel >= 0:
            write(channel, f"{nonce} {encode({'refused': words})}".encode())
        leave(1)
    problem = _problem(order["program"], test)
    told = f"{nonce} {encode({'problem': problem})}".encode()
    while told:
        told = told[write(channel, told) :]
    leave(0)


def _only_these(given: int, output: int, told_to: int, *, keeps_errors: bool) -> int:
    """Make these the only open files: 0, 1, 2 and what is returned."""
    os.dup2(given, 0)
    os.dup2(output, 1)
    if keeps_errors:
        os.dup2(output, 2)
    else:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 2)
    channel = 3
    if told_to != channel:
        os.dup2(told_to, channel)
    os.closerange(channel + 1, 2**16)
    # The text layer over descriptor 0 may hold a part of the order.
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    return channel


def _problem(program: str, test: Mapping[str, str]) -> str:
    """Run it; return what was raised, empty if nothing was."""
    build, run, words = compile, exec, _words
    whole = "output" in test
    for name in [name for name in sys.modules if name.partition(".")[0] == "rolecall_plugins"]:
        del sys.modules[name]
    name = "__main__" if whole else "program"
    module = types.ModuleType(name)
    sys.modules[name] = module
    output = sys.stdout
    try:
        run(build(program, "<program>", "exec"), module.__dict__)
        if not whole:
            run(build(test["code"], "<test>", "exec"), module.__dict__)
        output.flush()
    except SystemExit as left:
        if not whole or left.code not in (None, 0):
            return words(left)
        output.flush()
    except BaseException as error:  # noqa: BLE001 - a program may raise anything
        return words(error)
    return ""


def _words(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 - its own __str__ is the program's, too
        text = "(its text can't be had)"
    name = type(error).__name__
    return f"{name}: {text}"[:_MESSAGE_CHARACTERS] if text else name
