"""The job under test: the command line in a folder of its own, and what it leaves."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from fault_matrix.cells import GENERATOR, JUDGE
from fault_matrix.joined import Joined
from fault_matrix.memory_watch import MemoryWatch
from fault_matrix.network import processes_with
from fault_matrix.small_model import small_model
from rolecall_fault_gates.gates import FOLDER_VARIABLE, Gates

from rolecall.events.event import Event
from rolecall.events.hub import read_event_log

GATED = Path(__file__).parents[1] / "gated"

NAME = "fault"
PROMPTS, SAMPLES = 2, 1
ROWS = PROMPTS * SAMPLES
DEADLINE_S = 60.0
"""Of one lease command; what a fault may take longer than."""

_JOB = """
[job]
name = "{name}"
event_log = "events.jsonl"

[placement]
mode = "defer"
resource = "device_slot"
devices = 1
devices_per_node = 1

[lifecycle]
manager_timeout_s = {deadline_s}
drain_grace_s = 0.5
probe_interval_s = 0.3

[roles.{generator}.models.policy]
source = "{model}"
engine = "gated"
served_model_name = "{generator}-{mark}"
engine_options = {{ context_tokens = 8192 }}

[roles.{judge}.models.teacher]
source = "{model}"
engine = "gated"
served_model_name = "{judge}-{mark}"
engine_options = {{ context_tokens = 8192 }}

[rewards.exact]
adapter = "exact_match"

[gateway]
request_timeout_s = 60

[batch]
prompts = "prompts.jsonl"
batches = {batches}
prompts_per_batch = {prompts}
samples_per_prompt = {samples}

[batch.sampling]
temperature = 0.7
max_new_tokens = 48
ignore_eos = true

[sink]
name = "{sink}"
"""

_SHARED_MEMORY = Path("/dev/shm")


class Job:
    """``rolecall up`` and ``rolecall down``, as often as the cells need them; closed at the end."""

    def __init__(self, sink: str) -> None:
        # Short: Ray's sockets live below it, and their paths are limited to 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="rcf-", dir="/tmp"))
        self.temp = self.folder / "tmp"
        self.temp.mkdir()
        self.gates = Gates(self.folder / "gates")
        site = self.folder / "site"
        _install_gates(site)
        own = [str(GATED), str(site), str(GATED.parent)]
        inherited = os.environ.get("PYTHONPATH")
        self.environment = {
            **os.environ,
            "XDG_STATE_HOME": str(self.folder / "state"),
            "TMPDIR": str(self.temp),
            "HOME": str(self.folder),
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")),
            "PYTHONPATH": os.pathsep.join([*own, *([inherited] if inherited else [])]),
            FOLDER_VARIABLE: str(self.gates.folder),
            # How long Ray's processes try to reach a head that is gone before they end.
            "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
        }
        self._sink = sink
        self._write(batches=1)
        lines = [json.dumps({"prompt": f"What is {n} + {n}?", "answer": str(2 * n)}) for n in range(20)]
        (self.folder / "prompts.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        self._shared_memory = _entries(_SHARED_MEMORY)
        self.memory = MemoryWatch({role: f"{role}-{self.folder.name}" for role in (GENERATOR, JUDGE)})

    def _write(self, *, batches: int) -> None:
        text = _JOB.format(
            name=NAME,
            deadline_s=DEADLINE_S,
            generator=GENERATOR,
            judge=JUDGE,
            model=small_model(),
            mark=self.folder.name,
            batches=batches,
            prompts=PROMPTS,
            samples=SAMPLES,
            sink=self._sink,
        )
        (self.folder / "job.toml").write_text(text, encoding="utf-8")

    # --- life ---------------------------------------------------------------------------

    def up(self) -> None:
        """Bring the job up.

        Raises:
            RuntimeError: it did not come up.
        """
        shutil.rmtree(self.stored, ignore_errors=True)
        result = self.command("up", "job.toml")
        if result.returncode != 0:
            raise RuntimeError(f"the job did not come up: {result.stdout}{result.stderr}")

    def down(self) -> list[str]:
        """End the job as a user does; return what that left behind."""
        result = self.command("down", NAME)
        problems = (
            [] if result.returncode == 0 else [f"rolecall down: {result.stdout}{result.stderr}".strip()]
        )
        return problems + self.leftovers(30.0)

    def resume(self, batches: int) -> list[str]:
        """Have ``rolecall run --resume`` make all batches up to so many; return what is wrong about it."""
        self._write(batches=batches)
        before = {path: path.stat().st_mtime_ns for path in self.stored.rglob("*.jsonl")}
        result = self.command("run", "job.toml", "--resume")
        if result.returncode != 0:
            return [f"rolecall run --resume: {result.stdout[-1000:]}{result.stderr}".strip()]
        problems: list[str] = []
        if f"{batches} of {batches} batches committed" not in result.stdout:
            problems.append(
                f"rolecall run --resume did not come to {batches} batches: {result.stdout[-500:]}"
            )
        committed = [e.fields["batch"] for e in self.events() if e.fields.get("to") == "COMMITTED"]
        if sorted(committed) != list(range(batches)):
            problems.append(f"over the resume these batches were committed: {committed}")
        for path, changed_ns in before.items():
            number = int(path.stem.rpartition("_")[2])
            if number < batches - 2 and path.stat().st_mtime_ns != changed_ns:
                problems.append(f"{path.name} was committed, and was written again by the resumed run")
        return problems + self.leftovers(30.0)

    @property
    def stored(self) -> Path:
        """Where a sink of files keeps the job's batches."""
        return self.folder / "batches"

    def join(self) -> Joined:
        """Start a participant."""
        return Joined(NAME, self.environment, self.folder / "participants.log")

    def close(self) -> None:
        """End everything that is left, and remove the folder."""
        self.memory.close()
        for _ in range(2):
            for process in self.processes():
                process.send_signal(signal.SIGKILL)
            psutil.wait_procs(self.processes(), timeout=10)
        shutil.rmtree(self.folder, ignore_errors=True)

    def command(self, *words: str, timeout_s: float = 240.0) -> subprocess.CompletedProcess[str]:
        """Run a ``rolecall`` command."""
        return subprocess.run(
            [sys.executable, "-m", "rolecall.cli", *words],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    # --- what can be seen ---------------------------------------------------------------

    def processes(self) -> list[psutil.Process]:
        """Return all living processes of the job and of who has joined it."""
        return processes_with("TMPDIR", str(self.temp))

    def events(self) -> list[Event]:
        """Return what this job has told so far."""
        path = self.folder / "events.jsonl"
        return read_event_log(path) if path.exists() else []

    def named(self, *titles: str) -> list[int]:
        """Return the job's processes whose first word begins, or whose program ends, so."""
        found: list[int] = []
        for process in self.processes():
            try:
                first = (process.cmdline() or [""])[0]
            except psutil.NoSuchProcess:
                continue
            if first.startswith(titles) or first.rpartition("/")[2] in titles:
                found.append(process.pid)
        return found

    def leftovers(self, timeout_s: float) -> list[str]:
        """Return what is still there of an ended job after at most ``timeout_s``."""
        return until_none(self._left, timeout_s)

    def _left(self) -> list[str]:
        left = [f"process {p.pid}: {_words(p)}" for p in self.processes()]
        # torch makes a cache folder of its own when it is imported; it is not the job's.
        left += [f"file {p}" for p in self.temp.iterdir() if not p.name.startswith("torchinductor_")]
        left += [f"state file {path}" for path in (self.folder / "state").rglob("*.json")]
        fresh = _entries(_SHARED_MEMORY) - self._shared_memory
        if fresh:
            left += [f"shared memory {name}" for name in sorted(fresh - _mapped_by_anyone(fresh))]
        return left


def until_none(problems: Callable[[], list[str]], timeout_s: float) -> list[str]:
    """Look until there are no problems, or return the last ones after ``timeout_s``."""
    end = time.monotonic() + timeout_s
    while (found := problems()) and time.monotonic() < end:
        time.sleep(0.2)
    return found


def _install_gates(site: Path) -> None:
    """Make the metadata by which the plugin of the gates counts as installed."""
    info = site / "rolecall_fault_gates-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rolecall-fault-gates\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rolecall.engine_backends]\ngated = rolecall_fault_gates\n")


def _entries(folder: Path) -> frozenset[str]:
    return frozenset(path.name for path in folder.iterdir())


def _mapped_by_anyone(names: frozenset[str]) -> set[str]:
    """Those of the shared-memory files that a living process has mapped: other people's."""
    mapped: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            text = maps.read_text(errors="replace")
        except OSError:
            continue
        mapped |= {name for name in names if f"{_SHARED_MEMORY}/{name}" in text}
    return mapped


def _words(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:120]
    except psutil.NoSuchProcess:
        return "ended"
