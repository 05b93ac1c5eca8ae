"""Wheels built from this tree, and a new environment outside it that has them installed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import pytest
from attrs import frozen

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "plugins" / "examples" / "rolecall-format-reward"
COMMAND_TIMEOUT_S = 600


def load_environment_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("environment_script", ROOT / "scripts" / "environment.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@frozen(kw_only=True)
class Installation:
    """An environment of a user's: commands run in ``folder``, which knows nothing of this tree."""

    venv: Path
    folder: Path

    def run(self, *command: str, code: int = 0, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        """Run a command of the environment and return what it said on both streams."""
        result = subprocess.run(
            [str(self.venv / "bin" / command[0]), *command[1:]],
            cwd=self.folder,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert result.returncode == code, f"{command} ended with {result.returncode}:\n{result.stdout}"
        return result.stdout

    def environment(self) -> Mapping[str, str]:
        hidden = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
        kept = {name: value for name, value in os.environ.items() if name not in hidden}
        return {**kept, "PATH": f"{self.venv / 'bin'}{os.pathsep}{os.defpath}"}

    @property
    def site_packages(self) -> Path:
        return Path(
            self.run("python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
        )


def build(project: Path, folder: Path) -> Path:
    """Build a project as a release does, the wheel from the source distribution, and return the wheel."""
    command = [sys.executable, "-m", "build", "--outdir", str(folder), str(project)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def rolecall_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("rolecall-dist"))


@pytest.fixture(scope="session")
def example_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(EXAMPLE, tmp_path_factory.mktemp("example-dist"))


@pytest.fixture(scope="session")
def installation(
    tmp_path_factory: pytest.TempPathFactory, rolecall_wheel: Path, example_wheel: Path
) -> Iterator[Installation]:
    folder = tmp_path_factory.mktemp("elsewhere")
    place = Installation(venv=folder / "venv", folder=folder)
    load_environment_script().create(place.venv)
    place.run("python", "-m", "pip", "install", "-qq", str(rolecall_wheel), str(example_wheel))
    yield place
    shutil.rmtree(place.venv)  # pytest keeps the folders of three runs, and this one is large
