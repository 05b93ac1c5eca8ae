"""code_tests: what a program is worth, what it can't do, and that a fault of the sandbox is no reward."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from rolecall.api import Prompt, Sample, ScoringError
from rolecall.testing.samples import make_sample
from rolecall_plugins.rewards.code_tests import sandbox
from rolecall_plugins.rewards.code_tests.adapter import CodeTests, program_in
from rolecall_plugins.rewards.code_tests.options import CodeTestsOptions


@pytest.fixture(autouse=True)
def _temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    assert list(tmp_path.glob("rolecall-code-*")) == [], "a folder was left"


def sample(program: str, *tests: Any, fence: bool = True) -> Sample:
    response = f"Here:\n```python\n{program}\n```" if fence else program
    prompt = Prompt(prompt_id="p", text="?", metadata={"tests": list(tests)} if tests else {})
    return make_sample(prompt, 0, response)


async def score(program: str, *tests: Any, fence: bool = True, **options: Any) -> float:
    options = {"wall_s": 10.0, **options}
    return await CodeTests(CodeTestsOptions(**options)).score(sample(program, *tests, fence=fence), None)


ADD = "def add(a, b):\n    return a + b"


async def test_the_share_of_tests_that_passed() -> None:
    tests = ["assert add(2, 3) == 5", "assert add(1, 1) == 3", {"code": "assert add('a', 'b') == 'ab'"}]
    assert await score(ADD, *tests) == pytest.approx(2 / 3)
    assert await score(ADD, *tests, pays="all") == 0.0
    assert await score(ADD, *tests[:1], pays="all") == 1.0


@pytest.mark.parametrize(
    ("program", "worth"),
    [
        ("print(int(input()) + int(input()))", 1.0),
        ("a = int(input())\nif __name__ == '__main__':\n    print(a + int(input()), end=' \\n\\n')", 1.0),
        ("import sys\nprint(sum(map(int, sys.stdin)))\nsys.exit(0)", 1.0),
        ("import os\nos.write(1, b'5\\n')\nos._exit(0)", 1.0),
        ("import sys\nprint('thinking', file=sys.stderr)\nprint(5)", 1.0),
        ("print(5)\nraise SystemExit(1)", 0.0),
        ("print(5)\nimport os\nos._exit(3)", 0.0),
        ("print(6)", 0.0),
        ("print(5)\nprint(5)", 0.0),
        ("print('5' * 10**6)", 0.0),
        ("print(5)\n1/0", 0.0),
    ],
)
async def test_what_a_whole_program_prints(program: str, worth: float) -> None:
    assert await score(program, {"input": "2\n3\n", "output": "5"}) == worth


async def test_a_program_that_does_not_read_its_input() -> None:
    assert await score("print(5)", {"input": "x" * 10**6, "output": "5"}) == 1.0


@pytest.mark.parametrize(
    "program",
    [
        "def add(a, b) return",
        "raise ValueError('no')",
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "import ctypes; ctypes.string_at(0)",
        "while True: pass",
        "import time; time.sleep(60)",
        "x = 'a' * 10**10",
        "import os; os.fork()",
        "import threading; threading.Thread(target=print).start()",
        "import subprocess; subprocess.run(['true'])",
        "import socket; socket.create_connection(('127.0.0.1', {port}))",
        "open('/etc/passwd').read()",
        "open('/proc/self/environ').read()",
        "open('{outside}', 'w')",
        "open('big', 'wb').write(b'x' * 10**7)",
        "import os; os.kill(os.getppid(), 9)",
        "import os; os.setpgid(0, 0)",
        "import os; os.write(1, b'passed'); os.write(3, b'0 {{\"problem\": \"\"}}'); os._exit(0)",
        "files = [open('a' + str(n), 'w') for n in range(100)]",
        "import builtins, json; json.dumps = builtins.exec = None; 1/0",
        "print('x' * 10**7); 1/0",
    ],
)
async def test_a_program_that_fails_crashes_or_tries_what_it_may_not_is_worth_nothing(
    program: str, tmp_path: Path
) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        program = program.replace("{port}", str(listening.getsockname()[1]))
        program = (
            program.replace("{outside}", str(tmp_path / "outside")).replace("{{", "{").replace("}}", "}")
        )
        assert await score(program, "pass", wall_s=2.0, cpu_s=1) == 0.0
    assert not (tmp_path / "outside").exists()


async def test_one_test_that_hangs_or_crashes_costs_that_test_only() -> None:
    hangs, crashes = "while True: pass", "import ctypes; ctypes.string_at(0)"
    assert await score(ADD, "add(1, 2)", hangs, crashes, "add(3, 4)", wall_s=1.0) == 0.5


async def test_tests_do_not_see_what_others_left() -> None:
    program = "import os\nseen = []"
    test = "assert not os.path.exists('left') and not seen\nopen('left', 'w')\nseen.append(1)"
    assert await score(program, test, test) == 1.0


async def test_no_program_is_worth_nothing() -> None:
    assert await score("I can't.", "pass", fence=False) == 0.0
    assert await score("x = 1", "assert x == 1", fence=False, needs_fence=False) == 1.0


def test_the_last_block_counts_and_may_be_cut_off() -> None:
    assert program_in("```python\nx = 1\n```\n```\nx = 2") == "x = 2"
    assert program_in("no code") is None


@pytest.mark.parametrize("tests", [(), (1,), ({"input": "1"},), ({"input": 1, "output": "2"},), (" ",)])
async def test_a_prompt_without_sound_tests_is_an_error(tests: Any) -> None:
    with pytest.raises(ValueError, match=r'prompt "p": metadata\.tests'):
        await score(ADD, *tests)


# --- faults of the sandbox ----------------------------------------------------------------


def supervisors() -> list[psutil.Process]:
    """Return the supervisors that run now."""
    found: list[psutil.Process] = []
    for process in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # a zombie, too
            if "supervisor" in " ".join(process.cmdline()):
                found.append(process)
    return found


async def supervisor_of(scoring: asyncio.Task[float]) -> psutil.Process:
    """Wait until the program runs, and return its supervisor."""
    while not scoring.done():
        for process in supervisors():
            if process.children():
                return process
        await asyncio.sleep(0.01)
    raise AssertionError(f"it ended before: {scoring!r}")


@pytest.mark.parametrize("whose", ["supervisor", "test"])
async def test_a_sandbox_that_is_killed_is_an_error_and_no_zero(whose: str) -> None:
    scoring = asyncio.create_task(score("import time; time.sleep(60)", "pass", wall_s=30.0))
    supervisor = await supervisor_of(scoring)
    (child,) = supervisor.children()
    os.kill(supervisor.pid if whose == "supervisor" else child.pid, signal.SIGKILL)
    with pytest.raises(ScoringError, match=r"no answer|killed from outside"):
        await scoring
    child.wait(10)


async def test_a_kernel_that_can_not_confine_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = sandbox._CHILD.replace(  # pyright: ignore[reportPrivateUsage]
        "main()",
        "import rolecall_plugins.rewards.code_tests.confinement as c; c.LANDLOCK_ABI = 10**6; main()",
    )
    monkeypatch.setattr(sandbox, "_COMMAND", (*sandbox._COMMAND[:-1], broken))  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(ScoringError, match="can't be confined here: Landlock"):
        await score(ADD, "pass")
    assert await score(ADD, "add(1, 2)", require_landlock=False) == 1.0
    assert await score("import socket; socket.socket()", "pass", require_landlock=False) == 0.0


async def test_a_sandbox_that_can_not_be_started_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_COMMAND", ("/nowhere/python",))
    with pytest.raises(ScoringError, match="no process could be started"):
        await score(ADD, "pass")


async def test_a_cancelled_score_leaves_no_process() -> None:
    scoring = asyncio.create_task(score("import time; time.sleep(60)", "pass", wall_s=30.0))
    supervisor = await supervisor_of(scoring)
    family = [supervisor, *supervisor.children(recursive=True)]
    scoring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await scoring
    gone, alive = psutil.wait_procs(family, 10)
    assert not alive, gone


async def test_the_event_loop_goes_on_and_no_more_than_concurrency_run() -> None:
    adapter = CodeTests(CodeTestsOptions(concurrency=2))
    one = sample("import time; time.sleep(0.3)", "pass")
    scoring = asyncio.gather(*(adapter.score(one, None) for _ in range(4)))
    most, longest, before = 0, 0.0, asyncio.get_running_loop().time()
    while not scoring.done():
        most = max(most, len(supervisors()))
        await asyncio.sleep(0.01)
        now = asyncio.get_running_loop().time()
        longest, before = max(longest, now - before), now
    assert await scoring == [1.0] * 4
    assert most == 2
    assert longest < 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tests": "response"}, 'must be "answer" or "metadata.<key>"'),
        ({"pays": "some"}, "pays"),
        ({"memory_bytes": 1}, "memory_bytes"),
        ({"wall_s": 0}, "wall_s"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CodeTestsOptions(**options)
