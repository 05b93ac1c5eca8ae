"""What a program must not be able to do, tried for real."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rolecall_verifier import sandbox as sandbox_module
from rolecall_verifier.options import VerifierOptions
from rolecall_verifier.sandbox import Outcome, Sandbox, Verdict

from rolecall.api import ScoringError

SECRET = "rolecall-verifier-secret"


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the programs' folders are; nothing may be left in it, nor any process of one."""
    # Not pytest's own: its path has the test's name, which may be long.
    place = Path(tempfile.mkdtemp())
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    monkeypatch.setenv("SECRET_TOKEN", SECRET)
    yield place
    left, running = list(place.iterdir()), processes_in(place)
    shutil.rmtree(place)
    assert (left, running) == ([], [])


def processes_in(folder: Path) -> list[str]:
    """Processes that work in one of the programs' folders, by their ids."""
    found: list[str] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            place = os.readlink(entry / "cwd")
        except OSError:
            continue  # it ended while we looked, or is somebody else's
        if place.startswith(f"{folder}/"):
            found.append(entry.name)
    return found


async def run(program: str, *tests: str, **options: Any) -> Verdict:
    return await Sandbox(VerifierOptions(**options)).run(program, tests or ("pass",))


async def refused(*attempts: str) -> None:
    """Try everything in one program and fail unless each attempt is refused."""
    verdict = await run("", *attempts)
    assert (verdict.outcome, verdict.passed) == (Outcome.FAILED, 0), verdict
    for number, raised in verdict.failures.items():
        assert "PermissionError" in raised, f"{attempts[number]}: {raised}"


# --- limits -------------------------------------------------------------------------------


async def test_an_endless_loop_ends_with_its_processor_time() -> None:
    verdict = await run("while True: pass", cpu_s=1, wall_s=30)
    assert verdict.outcome is Outcome.UNFINISHED
    assert "ended by SIGXCPU before its tests were done" in verdict.detail
    assert verdict.seconds < 20


async def test_a_loop_that_ignores_its_limit_is_killed() -> None:
    ignore = "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\n"
    verdict = await run(ignore + "while True: pass", cpu_s=1, wall_s=30)
    assert "ended by SIGKILL" in verdict.detail


@pytest.mark.parametrize("where", ["program", "test"])
async def test_a_program_that_waits_is_stopped_by_the_clock(where: str) -> None:
    wait = "import time\ntime.sleep(60)"
    verdict = await (run(wait, wall_s=0.5) if where == "program" else run("", wait, wall_s=0.5))
    assert (verdict.outcome, verdict.passed) == (Outcome.TIMEOUT, 0)
    assert verdict.detail == "it was stopped after 0.5 s"


async def test_memory_has_an_end() -> None:
    verdict = await run("hog = bytearray(2 * 1024**3)")
    assert (verdict.outcome, verdict.detail) == (Outcome.ERROR, "MemoryError")
    assert (await run("hog = bytearray(64 * 1024**2)")).outcome is Outcome.PASSED


async def test_a_file_has_an_end() -> None:
    write = "with open('a', 'wb') as file:\n    for _ in range({}): file.write(b'x' * 1024)\n"
    assert (await run(write.format(512), file_bytes=1024**2)).outcome is Outcome.PASSED
    verdict = await run(write.format(2048), file_bytes=1024**2)
    assert "File too large" in verdict.detail


async def test_open_files_have_an_end() -> None:
    verdict = await run("files = [open('a', 'w') for _ in range(100)]")
    assert "Too many open files" in verdict.detail


async def test_output_is_read_to_its_end_and_kept_to_its_limit() -> None:
    verdict = await run("print('x' * 20_000_000)", output_bytes=1000)
    assert (verdict.outcome, verdict.output, verdict.truncated) == (Outcome.PASSED, "x" * 1000, True)
    short = await run("import sys; print('out'); print('err', file=sys.stderr)")
    assert (sorted(short.output.split()), short.truncated) == (["err", "out"], False)


# --- processes ----------------------------------------------------------------------------

DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open("alive", "w").close()
        time.sleep(600)
"""

STARTS = (
    DAEMON,
    "import subprocess; subprocess.run(['true'])",
    "import os; os.posix_spawn('/bin/true', ['true'], {})",
    "import os; os.execv('/bin/true', ['true'])",
    "import os; assert os.system('sleep 600 &') == 0, 'PermissionError'",
    "import multiprocessing; multiprocessing.Process(target=print).start()",
    "import threading; threading.Thread(target=print).start()",
)


async def test_no_process_and_no_thread_can_be_started() -> None:
    verdict = await run("", *STARTS, wall_s=20)
    assert (verdict.outcome, verdict.passed) == (Outcome.FAILED, 0), verdict
    *others, thread = verdict.failures.values()
    assert all("PermissionError" in raised for raised in others), verdict
    assert thread == "RuntimeError: can't start new thread"


async def test_a_bomb_does_not_go_off() -> None:
    assert (await run("import os\nwhile True: os.fork()")).detail.startswith("PermissionError")


async def test_a_bomb_that_swallows_its_errors_ends_with_the_clock() -> None:
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    assert (await run(bomb, wall_s=1)).outcome is Outcome.TIMEOUT


async def test_other_processes_can_not_be_touched() -> None:
    await refused(
        "import os, signal; os.kill(os.getppid(), signal.SIGKILL)",
        "import os, signal; os.kill(-1, signal.SIGKILL)",
        "import os, signal; os.killpg(0, signal.SIGKILL)",
        "import os; os.pidfd_open(os.getppid())",
        "import os, resource; resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))",
        "import os; os.sched_setaffinity(os.getppid(), {0})",
    )


async def test_a_run_that_is_cancelled_leaves_nothing(folder: Path) -> None:
    task = asyncio.create_task(run("import time\ntime.sleep(60)", wall_s=60))
    while not processes_in(folder):  # noqa: ASYNC110 - nobody tells when a process is there
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_only_so_many_run_at_once() -> None:
    sandbox = Sandbox(VerifierOptions(concurrency=2))
    program = "import time\nprint(time.monotonic())\ntime.sleep(0.3)\nprint(time.monotonic())"
    verdicts = await asyncio.gather(*(sandbox.run(program, ["pass"]) for _ in range(5)))
    spans = [tuple(map(float, verdict.output.split())) for verdict in verdicts]
    at_once = [sum(other[0] <= begin < other[1] for other in spans) for begin, _ in spans]
    assert max(at_once) == 2


# --- what it can see ----------------------------------------------------------------------


async def test_the_environment_is_empty_and_that_of_others_out_of_reach() -> None:
    program = """
import os
print(dict(os.environ))
for pid in (os.getppid(), 1, "self"):
    try:
        print(open(f"/proc/{pid}/environ").read())
    except OSError as error:
        print(type(error).__name__)
"""
    verdict = await run(program)
    assert verdict.outcome is Outcome.PASSED
    assert SECRET not in verdict.output
    assert verdict.output.split("\n", 1)[1].split() == ["PermissionError"] * 3


async def test_nothing_outside_its_folder_can_be_reached() -> None:
    await refused(
        "open('/etc/passwd')",
        "import os; os.listdir('/')",
        "import os; os.listdir('/proc')",
        "open('../other', 'w')",
        "open('/tmp/other', 'w')",
        "open('/dev/shm/other', 'w')",
        "import os; os.mkdir('/tmp/other')",
        "import os; os.chmod('/tmp', 0o777)",
        "import os; os.truncate(__import__('json').__file__, 0)",
        "import os; os.symlink('/etc/passwd', 'link'); open('link')",
        "import os; os.unlink(__import__('json').__file__)",
        "import socket; socket.socket()",
        "import socket; socket.create_connection(('127.0.0.1', 22))",
        "import ctypes; assert ctypes.CDLL(None).unshare(0x10000000) == 0, 'PermissionError'",
    )


async def test_its_folder_is_empty_and_its_own(folder: Path) -> None:
    program = "import os\nassert os.listdir() == []\nopen('mine', 'w').write('x')\nprint(os.getcwd())"
    first, second = await run(program), await run(program)
    assert (first.outcome, second.outcome) == (Outcome.PASSED, Outcome.PASSED)
    assert first.output != second.output
    assert Path(first.output.strip()).parent == folder


async def test_the_standard_library_is_there_and_site_packages_are_not() -> None:
    names = "asyncio, collections, ctypes, dataclasses, decimal, hashlib, heapq, json, re, sqlite3, unittest"
    assert (await run(f"import {names}\nasyncio.run(asyncio.sleep(0))")).outcome is Outcome.PASSED
    assert "ModuleNotFoundError" in (await run("import attrs")).detail
    assert "ModuleNotFoundError" in (await run("import rolecall_verifier.sandbox")).detail


# --- verdicts can't be forged by what a program says ----------------------------------------


@pytest.mark.parametrize(
    "program",
    [
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "raise SystemExit",
        "raise KeyboardInterrupt",
        "import atexit, os; atexit.register(print, 'passed'); raise SystemExit(0)",
        "import os; os.abort()",
        "import ctypes; ctypes.string_at(0)",
    ],
)
async def test_a_program_that_leaves_early_has_passed_nothing(program: str) -> None:
    verdict = await run(program)
    assert verdict.outcome in (Outcome.ERROR, Outcome.UNFINISHED), verdict
    assert (verdict.passed, verdict.share) == (0, 0.0)
    assert verdict.detail


@pytest.mark.parametrize("leave", ["sys.exit(0)", "os._exit(0)", "print('passed')"])
async def test_a_test_that_is_left_early_is_not_passed(leave: str) -> None:
    program = f"import os, sys\ndef f():\n    {leave}\n    return 0"
    verdict = await run(program, "assert f() == 1")
    assert verdict.outcome in (Outcome.FAILED, Outcome.UNFINISHED), verdict
    assert verdict.passed == 0


async def test_what_a_program_writes_anywhere_is_no_verdict() -> None:
    told = json.dumps({"error": None, "failures": []})
    program = f"""
import os
for fd in range(32):
    for text in ({told!r}, "passed", " " + {told!r}):
        try:
            os.write(fd, text.encode() + b"\\n")
        except OSError:
            pass
"""
    verdict = await run(program, "assert False")
    assert (verdict.outcome, verdict.passed) == (Outcome.UNFINISHED, 0)
    assert (await run(program + "os._exit(0)", "assert False")).outcome is Outcome.UNFINISHED


async def test_builtins_that_a_program_changes_change_no_verdict() -> None:
    program = """
import builtins, os
builtins.exec = builtins.compile = lambda *a, **k: ""
builtins.range = builtins.enumerate = lambda *a: []
builtins.len = lambda a: 0
os._exit = print
"""
    verdict = await run(program, "assert False", "assert True")
    assert (verdict.outcome, verdict.passed) == (Outcome.FAILED, 1)


async def test_an_error_that_can_not_be_told_is_still_one() -> None:
    program = "class Mute(Exception):\n    def __str__(self): raise ValueError\ndef f(): raise Mute"
    verdict = await run(program, "f()")
    assert verdict.failures == {0: "Mute: (its text can't be had)"}


async def test_a_kernel_that_can_not_confine_is_an_error_and_runs_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    *interpreter, code = sandbox_module._COMMAND
    later = "import rolecall_verifier.confinement as c; c.LANDLOCK_ABI = 99; del sys.path[0]"
    monkeypatch.setattr(sandbox_module, "_COMMAND", (*interpreter, code.replace("del sys.path[0]", later)))
    with pytest.raises(ScoringError, match=r"can't be confined here: Landlock, ABI 99 or later, is needed"):
        await run("print('ran')")


async def test_without_a_process_it_is_the_verifier_s_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_module, "_COMMAND", (os.devnull,))
    with pytest.raises(ScoringError, match="no process could be started"):
        await run("pass")
