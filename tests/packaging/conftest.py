"""Wheels built from this tree, and one new environment outside it that has them installed.

Making the environment takes a minute, so there is one for the whole session. Tests add their own
distributions with :meth:`Installation.installed`, which takes them out again.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
from attrs import evolve, frozen

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(file.parent for file in ROOT.glob("plugins/examples/*/pyproject.toml"))
COMMAND_TIMEOUT_S = 600

WheelBuilder = Callable[[Iterable[Path]], tuple[Path, ...]]


def load_environment_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("environment_script", ROOT / "scripts" / "environment.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@frozen(kw_only=True)
class Installation:
    """An environment of a user's: commands run in ``folder``, which knows nothing of this tree.

    default_bytes: what ``pip install rolecall`` took in it, before anything was compiled.
    """

    venv: Path
    folder: Path
    default_bytes: int = 0

    @contextmanager
    def installed(self, *wheels: Path) -> Generator[None]:
        """Have further distributions installed for the length of a block; all dependencies must be there."""
        self.pip("install", "--no-deps", "--no-index", *map(str, wheels))
        try:
            yield
        finally:
            self.pip("uninstall", "--yes", *(distribution_of(wheel) for wheel in wheels))

    @contextmanager
    def uninstalled(self, wheel: Path) -> Generator[None]:
        """Have a distribution uninstalled for the length of a block."""
        self.pip("uninstall", "--yes", distribution_of(wheel))
        try:
            yield
        finally:
            self.pip("install", "--no-deps", "--no-index", str(wheel))

    def pip(self, command: str, *arguments: str) -> None:
        # Of some ten thousand modules few are ever imported here; those are compiled then.
        quick = ["--no-compile"] if command == "install" else []
        self.run("python", "-m", "pip", command, "-qq", *quick, *arguments)

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
        return {
            **kept,
            "PATH": f"{self.venv / 'bin'}{os.pathsep}{os.defpath}",
            # Jobs of other runs of these tests, killed ones too, are none of this user's.
            "XDG_STATE_HOME": str(self.folder / "state"),
        }

    @property
    def site_packages(self) -> Path:
        return Path(
            self.run("python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
        )


def distribution_of(wheel: Path) -> str:
    return wheel.name.split("-")[0].replace("_", "-")


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
def build_wheels(tmp_path_factory: pytest.TempPathFactory) -> WheelBuilder:
    """Builds the wheels of many small projects in this process: no isolation, a tenth of a second each."""
    # Only these tests need the build backend.
    from hatchling.builders.wheel import WheelBuilder

    folder = tmp_path_factory.mktemp("wheels")

    def build_all(projects: Iterable[Path]) -> tuple[Path, ...]:
        return tuple(
            Path(wheel)
            for project in projects
            for wheel in WheelBuilder(str(project)).build(directory=str(folder), versions=["standard"])
        )

    return build_all


@pytest.fixture(scope="session")
def example_wheels(build_wheels: WheelBuilder) -> Mapping[str, Path]:
    """The wheel of each project in ``plugins/examples``, by the project's folder."""
    wheels = build_wheels(EXAMPLES)
    return {project.name: wheel for project, wheel in zip(EXAMPLES, wheels, strict=True)}


OBSERVER = """
from rolecall.api import ROLECALL_API, hookimpl


class Observer:
    name = "{name}"
    api_version = {api_version}

    def on_event(self, event):
        {body}


@hookimpl
def {hook}():
    return Observer
"""
SOUND = {"api_version": "ROLECALL_API", "body": "pass", "hook": "rolecall_observer"}
LAB = {
    "lab-pager": ("lab_pager", OBSERVER.format(**SOUND, name="lab_pager")),
    "lab-noisy": (
        "lab_noisy",
        OBSERVER.format(
            **{**SOUND, "body": "raise RuntimeError(f'cannot bear {event.kind}')"}, name="lab_noisy"
        ),
    ),
    "lab-explodes": ("lab_explodes", "def explode():\n    raise KeyError('fuse')\n\n\nexplode()\n"),
    "lab-misspelt": (
        "lab_misspelt",
        OBSERVER.format(**{**SOUND, "hook": "rolecall_obsever"}, name="lab_misspelt"),
    ),
    "lab-future": ("lab_future", OBSERVER.format(**{**SOUND, "api_version": "2"}, name="lab_future")),
    "lab-misnamed": ("lab_misnamed", OBSERVER.format(**SOUND, name="lab_other_name")),
    "lab-twin-one": ("lab_twin", OBSERVER.format(**SOUND, name="lab_twin")),
    "lab-twin-two": ("lab_twin", OBSERVER.format(**SOUND, name="lab_twin")),
}
"""Distribution → the observer it offers, the module's code; all but the first have a fault."""


@pytest.fixture(scope="session")
def lab_wheels(build_wheels: WheelBuilder, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """A wheel for each distribution of the laboratory."""
    folder = tmp_path_factory.mktemp("lab")
    for distribution, (name, code) in LAB.items():
        module = distribution.replace("-", "_")
        project = folder / distribution
        project.mkdir()
        (project / f"{module}.py").write_text(code, encoding="utf-8")
        (project / "pyproject.toml").write_text(
            '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
            f'[project]\nname = "{distribution}"\nversion = "1.2"\ndependencies = ["rolecall"]\n'
            f'[project.entry-points."rolecall.observers"]\n{name} = "{module}"\n'
            f'[tool.hatch.build.targets.wheel]\ninclude = ["{module}.py"]\n',
            encoding="utf-8",
        )
    wheels = build_wheels(folder / distribution for distribution in LAB)
    return dict(zip(LAB, wheels, strict=True))


@pytest.fixture(scope="session")
def installation(
    tmp_path_factory: pytest.TempPathFactory, rolecall_wheel: Path, example_wheels: Mapping[str, Path]
) -> Iterator[Installation]:
    """rolecall and every example with their dependencies, and what their authors test with."""
    folder = tmp_path_factory.mktemp("elsewhere")
    place = Installation(venv=folder / "venv", folder=folder)
    load_environment_script().create(place.venv)
    place.pip("install", str(rolecall_wheel))
    default_bytes = sum(file.stat().st_size for file in place.site_packages.rglob("*") if file.is_file())
    place.pip("install", "rolecall[testing]", *map(str, example_wheels.values()))
    yield evolve(place, default_bytes=default_bytes)
    shutil.rmtree(place.venv)  # pytest keeps the folders of three runs, and this one is large
