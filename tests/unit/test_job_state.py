"""State files, the sweep that leaves nothing behind, and the guardian that does it for the dead."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from rolecall.errors import JobError
from rolecall.job.find import find_job, is_alive, job_name, must_be_new
from rolecall.job.guardian import Charge, Guardian
from rolecall.job.paths import (
    JobState,
    known_jobs,
    make_run_dir,
    read_state,
    state_path,
    write_state,
)
from rolecall.job.sweep import end_processes, job_processes, remove_files
from rolecall.processes.marks import RUN_DIR_VARIABLE


@pytest.fixture(autouse=True)
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def state(run_dir: Path, **changes) -> JobState:
    values = {
        "name": "demo",
        "file": "job.toml",
        "pid": os.getpid(),
        "pid_started_s": psutil.Process().create_time(),
        "run_dir": str(run_dir),
        "namespace": "rolecall-demo",
        "ray_address": "127.0.0.1:1",
        "gateway_url": "http://127.0.0.1:2",
    }
    return JobState(**(values | changes))


@pytest.fixture
def sleeper(tmp_path: Path):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, RUN_DIR_VARIABLE: str(run_dir)},
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield run_dir, process
    process.kill()
    process.wait()
    process.stdout.close()


def test_state_comes_back_as_written(tmp_path: Path):
    write_state(state(tmp_path))
    assert read_state("demo") == state(tmp_path)
    assert known_jobs() == ("demo",)
    assert state_path("demo").stat().st_mode & 0o077 == 0


def test_no_state_is_none_and_a_damaged_one_says_which_file(tmp_path: Path):
    assert read_state("demo") is None
    write_state(state(tmp_path))
    state_path("demo").write_text("{")
    with pytest.raises(JobError, match=r"demo\.json"):
        read_state("demo")


def test_a_recycled_pid_is_not_the_job(tmp_path: Path):
    assert is_alive(state(tmp_path))
    assert not is_alive(state(tmp_path, pid_started_s=1.0))
    assert not is_alive(state(tmp_path, pid=2**22 + 1))


def test_a_job_is_found_by_name_or_when_it_is_the_only_one(tmp_path: Path):
    with pytest.raises(JobError, match="no job is running"):
        job_name(None)
    write_state(state(tmp_path))
    assert job_name(None) == "demo"
    assert find_job("demo").pid == os.getpid()
    with pytest.raises(JobError, match="did you mean 'demo'"):
        find_job("demmo")
    write_state(state(tmp_path, pid_started_s=1.0))
    with pytest.raises(JobError, match="rolecall down demo"):
        find_job("demo")


def test_a_second_job_of_one_name_is_refused_and_hears_whether_the_first_still_runs(tmp_path: Path):
    must_be_new("demo")
    write_state(state(tmp_path))
    with pytest.raises(JobError, match=rf"already running \(process {os.getpid()}.*or give this one another"):
        must_be_new("demo")
    write_state(state(tmp_path, pid_started_s=1.0))
    with pytest.raises(JobError, match=r"ended without cleaning up; `rolecall down demo` removes"):
        must_be_new("demo")


def test_sweep_ends_the_jobs_processes_and_no_others(sleeper):
    run_dir, process = sleeper
    assert [p.pid for p in job_processes(run_dir)] == [process.pid]
    assert job_processes(run_dir.parent / "other") == []
    assert end_processes(run_dir, grace_s=0) == []
    assert not psutil.pid_exists(process.pid)
    assert end_processes(run_dir, grace_s=0) == []


def test_files_are_removed_and_another_runs_state_is_kept(tmp_path: Path):
    (tmp_path / "run").mkdir()
    write_state(state(tmp_path / "another"))
    remove_files("demo", tmp_path / "run")
    assert read_state("demo") is not None
    write_state(state(tmp_path / "run"))
    remove_files("demo", tmp_path / "run")
    assert read_state("demo") is None
    assert not (tmp_path / "run").exists()


def test_guardian_cleans_up_after_a_killed_job_process(sleeper, tmp_path: Path):
    run_dir, process = sleeper
    write_state(state(run_dir))
    script = (
        "import sys; from rolecall.job.guardian import Charge, Guardian;"
        f"Guardian(Charge(job='demo', run_dir={str(run_dir)!r})); print(flush=True); sys.stdin.read()"
    )
    job = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert job.stdout is not None
    job.stdout.readline()
    guardians = psutil.Process(job.pid).children()
    assert len(guardians) == 1
    process.stdin.close()  # the job's process ends within the guardian's grace
    job.kill()
    job.communicate()
    psutil.wait_procs(guardians, timeout=30)
    assert not run_dir.exists()
    assert read_state("demo") is None


def test_a_dismissed_guardian_is_gone(tmp_path: Path):
    (tmp_path / "run").mkdir()
    guardian = Guardian(Charge(job="demo", run_dir=str(tmp_path / "run")))
    guardian.dismiss()
    guardian.dismiss()
    assert not (tmp_path / "run").exists()


def test_a_temporary_folder_too_deep_for_rays_sockets_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tempfile.tempdir", "/tmp/" + "x" * 40)
    with pytest.raises(JobError, match="TMPDIR"):
        make_run_dir()
