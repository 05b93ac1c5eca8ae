"""The front-door scripts make their environment, once, on a Python with or without ensurepip."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.packaging, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
SHOW = """
import json, os, sys

def main():
    names = ("VIRTUAL_ENV", "XDG_STATE_HOME", "XDG_CACHE_HOME")
    shown = {name: os.environ.get(name) for name in names}
    print(json.dumps({"arguments": sys.argv[1:], "folder": os.getcwd(), "prefix": sys.prefix, **shown}))
"""
PYPROJECT = """
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "small"
version = "1"

[project.scripts]
rolecall = "small:main"

[dependency-groups]
test = ["iniconfig"]
"""


def make_clone(folder: Path) -> Path:
    """Make a small project that has rolecall's scripts; its ``rolecall`` shows how it was called."""
    shutil.copytree(ROOT / "scripts", folder / "scripts")
    (folder / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
    (folder / "small.py").write_text(SHOW, encoding="utf-8")
    return folder


def call(*command: str | Path, code: int = 0, **variables: str) -> tuple[str, str]:
    result = subprocess.run(
        [str(word) for word in command],
        cwd="/",
        env={**os.environ, "PYTHON": sys.executable, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == code, result.stdout + result.stderr
    return result.stdout, result.stderr


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_clone(tmp_path_factory.mktemp("clone with a space"))
    call(folder / "scripts" / "quickstart")
    return folder


def test_quickstart_runs_the_example_in_the_clone_and_passes_arguments_on(clone: Path) -> None:
    shown = json.loads(call(clone / "scripts" / "quickstart", "--batches", "1 2")[0])
    assert shown["arguments"] == ["run", "examples/quickstart.toml", "--batches", "1 2"]
    assert shown["folder"] == str(clone)
    assert shown["prefix"] == shown["VIRTUAL_ENV"] == str(clone / ".venv-rolecall")


def test_a_second_run_starts_at_once_and_says_nothing(clone: Path) -> None:
    assert call(clone / "scripts" / "quickstart")[1] == ""


def test_the_exit_code_is_the_commands_own(clone: Path) -> None:
    script = ["python3", clone / "scripts" / "environment.py", "--"]
    call(*script, "python", "-c", "raise SystemExit(7)", code=7)
    assert "there is no command 'nonsense'" in call(*script, "nonsense", code=1)[1]


def test_a_home_that_cannot_be_written_is_replaced_by_the_clone(clone: Path) -> None:
    shown = json.loads(call(clone / "scripts" / "quickstart", HOME="/nonexistent")[0])
    assert Path(shown["XDG_STATE_HOME"]).is_relative_to(clone)
    assert Path(shown["XDG_CACHE_HOME"]).is_relative_to(clone)


def test_a_changed_project_is_installed_again_into_the_same_environment(clone: Path) -> None:
    witness = clone / ".venv-rolecall" / "witness"
    witness.touch()
    pyproject = clone / "pyproject.toml"
    pyproject.write_text(pyproject.read_text(encoding="utf-8") + "# changed\n", encoding="utf-8")
    assert "is ready after" in call(clone / "scripts" / "quickstart")[1]
    assert witness.exists()
    assert call(clone / "scripts" / "quickstart")[1] == ""


def test_a_dependency_group_is_added_to_what_is_there(clone: Path) -> None:
    script = [sys.executable, clone / "scripts" / "environment.py", "--group", "test", "--"]
    assert (
        "installing rolecall, test tools into .venv-rolecall"
        in call(*script, "python", "-c", "import iniconfig")[1]
    )
    assert call(*script, "python", "-c", "import iniconfig, small")[1] == ""


def test_pinned_requirements_come_without_their_dependencies_and_again_when_the_file_changes(
    clone: Path,
) -> None:
    pins = clone / "pins.txt"
    pins.write_text("jinja2\n", encoding="utf-8")
    script = [sys.executable, clone / "scripts" / "environment.py", "--venv", ".venv-pinned"]
    script += ["--pinned", "pins.txt", "--", "python", "-c"]
    look = "from importlib.util import find_spec as f; print(*(n for n in ('jinja2', 'markupsafe') if f(n)))"
    out, said = call(*script, look)
    assert out == "jinja2\n"
    assert "installing rolecall, what pins.txt lists into .venv-pinned" in said
    pins.write_text("jinja2\nmarkupsafe\n", encoding="utf-8")
    assert call(*script, look)[0] == "jinja2 markupsafe\n"
    assert call(*script, look) == ("jinja2 markupsafe\n", "")


def test_an_interrupted_attempt_is_made_anew(clone: Path) -> None:
    environment = clone / ".venv-rolecall"
    (environment / "rolecall-installed.json").write_text("{", encoding="utf-8")
    (environment / "half-made").touch()
    call(clone / "scripts" / "quickstart")
    assert not (environment / "half-made").exists()


def test_two_at_once_wait_for_each_other_and_a_moved_clone_is_made_anew(tmp_path: Path, clone: Path) -> None:
    moved = shutil.copytree(clone, tmp_path / "moved", symlinks=True)
    both = [
        subprocess.Popen(
            [moved / "scripts" / "quickstart"],
            env={**os.environ, "PYTHON": sys.executable},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    said = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert all(json.loads(out)["prefix"] == str(moved / ".venv-rolecall") for out, _ in said)
    assert sum("is ready after" in error for _, error in said) == 1


def test_a_python_without_ensurepip_uses_virtualenv_from_the_clone(tmp_path: Path) -> None:
    clone = make_clone(tmp_path / "clone")
    shadow = tmp_path / "shadow"
    shadow.mkdir()
    (shadow / "ensurepip.py").write_text("raise ImportError('packaged apart')", encoding="utf-8")
    out, said = call(clone / "scripts" / "quickstart", PYTHONPATH=str(shadow))
    assert "this Python has no ensurepip" in said
    assert json.loads(out)["prefix"] == str(clone / ".venv-rolecall")
    names = {path.name for path in clone.iterdir()} - {"__pycache__", "scripts", "small.py", "pyproject.toml"}
    assert names == {".venv-bootstrap", ".venv-bootstrap.lock", ".venv-rolecall", ".venv-rolecall.lock"}


@pytest.mark.parametrize("version", ["3.10.14", "3.14.0"])
def test_another_python_gets_a_message_that_says_what_to_do(tmp_path: Path, version: str) -> None:
    shadow = tmp_path / "shadow"
    shadow.mkdir()
    numbers = tuple(int(part) for part in version.split("."))
    pretend = f"import sys\nsys.version_info = {numbers}\nsys.version = {version!r}\n"
    (shadow / "sitecustomize.py").write_text(pretend, encoding="utf-8")
    said = call(ROOT / "scripts" / "test", code=1, PYTHONPATH=str(shadow))[1]
    assert f"needs Python 3.11 to 3.13, but {sys.executable} is {version}" in said
    assert "PYTHON" in said
