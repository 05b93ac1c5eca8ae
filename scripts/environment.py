"""Run a command in a virtual environment of this clone, making the environment first if needed.

    python3 scripts/environment.py [--venv DIR] [--group G]... [--extra E]... [--with REQ]... [--pinned FILE]
        -- COMMAND ...

Called by ``scripts/quickstart``, ``scripts/test`` and ``.ci/run``. Needs a supported Python and
its standard library; pip only where Python comes without ``ensurepip``. Installs the project in
editable form, with the wanted dependency groups and extras, into a folder inside the clone that
git ignores. What a ``--pinned`` requirements file lists is installed over that, without its
dependencies: for what can't be resolved on a machine without a GPU. What has been installed is
written into a stamp there, so a second run starts the command at once; a changed
``pyproject.toml`` or file installs again, and another Python, a moved clone or an interrupted
attempt makes the folder anew. Touches nothing outside the clone but pip's cache.

The syntax stays readable for Python 3.7, so that an old one gets a message and no traceback.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

OLDEST, NEWEST = (3, 11), (3, 13)
ROOT = Path(__file__).resolve().parent.parent
BOOTSTRAP = ROOT / ".venv-bootstrap"
STAMP = "rolecall-installed.json"
PIP_WITH_GROUPS = (25, 1)


def say(text: str) -> None:
    print(f"rolecall: {text}", file=sys.stderr, flush=True)


def check_python() -> None:
    """Stop with a message that names a fitting Python, if this one isn't."""
    if OLDEST <= sys.version_info[:2] <= NEWEST:
        return
    span = f"3.{OLDEST[1]} to 3.{NEWEST[1]}"
    found = [name for name in ("python3.13", "python3.12", "python3.11") if shutil.which(name)]
    fix = f"set PYTHON={found[0]}" if found else "install one of them and set PYTHON to it"
    sys.exit(f"rolecall: needs Python {span}, but {sys.executable} is {sys.version.split()[0]}; {fix}")


def run(*command: str, **variables: str) -> None:
    """Run a command that must succeed; its own output says why it did not."""
    environment = dict(os.environ, PIP_DISABLE_PIP_VERSION_CHECK="1", **variables)
    code = subprocess.run(command, cwd=str(ROOT), env=environment, check=False).returncode
    if code != 0:
        sys.exit(f"rolecall: this command failed with exit code {code}:\n  {' '.join(command)}")


def has_ensurepip() -> bool:
    """Tell whether ``venv`` can give an environment its pip; Debian packages that part apart."""
    try:
        from ensurepip import version
    except ImportError:
        return False
    return bool(version())


@contextmanager
def alone(folder: Path) -> Generator[None]:
    """Keep other runs from preparing the same folder; different ones may be prepared at once."""
    with folder.with_name(folder.name + ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another run that is preparing {folder.name}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def create(venv: Path) -> None:
    """Make an empty environment with pip, whatever stood there before."""
    if has_ensurepip():
        run(sys.executable, "-m", "venv", "--clear", str(venv))
        return
    # ``--target`` is the way in that an externally managed Python leaves open.
    say("this Python has no ensurepip (on Debian: python3-venv); using virtualenv from the clone instead")
    if importlib.util.find_spec("pip") is None:
        sys.exit("rolecall: this Python has neither ensurepip nor pip; install python3-venv or python3-pip")
    with alone(BOOTSTRAP):
        run(
            sys.executable,
            "-m",
            "pip",
            "install",
            "-qq",
            "--upgrade",
            "--target",
            str(BOOTSTRAP),
            "virtualenv",
        )
    path = os.pathsep.join(filter(None, [str(BOOTSTRAP), os.environ.get("PYTHONPATH")]))
    # Recent virtualenvs also leave a file ``.venv`` that would point editors here; not ours to choose.
    quiet = {"PYTHONPATH": path, "VIRTUALENV_VENV_REDIRECT": "false"}
    run(sys.executable, "-m", "virtualenv", "-q", "--no-periodic-update", "--clear", str(venv), **quiet)


def pip_version(python: Path) -> tuple[int, ...]:
    said = subprocess.run([str(python), "-m", "pip", "--version"], stdout=subprocess.PIPE, check=True).stdout
    numbers = re.match(rb"pip (\d+)\.(\d+)", said)
    return tuple(int(number) for number in numbers.groups()) if numbers else (0,)


def install(
    venv: Path, groups: list[str], extras: list[str], requirements: list[str], pinned: str | None
) -> None:
    """Install the project and what was asked for into the environment."""
    python = venv / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "-qq"]
    if groups and pip_version(python) < PIP_WITH_GROUPS:
        run(*pip, "--upgrade", "pip>=" + ".".join(map(str, PIP_WITH_GROUPS)))
    project = f".[{','.join(extras)}]" if extras else "."
    chosen = [word for group in groups for word in ("--group", group)]
    run(*pip, "-e", project, *requirements, *chosen)
    if pinned is not None:
        run(*pip, "--no-deps", "-r", pinned)


def prepare(
    venv: Path, groups: list[str], extras: list[str], requirements: list[str], pinned: str | None
) -> None:
    """Bring the environment to what is asked for; returns at once if it is there already."""
    base = {"root": str(ROOT), "python": list(sys.version_info[:2]), "prefix": sys.base_prefix}
    project = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    wanted = [f"project {project}", *(f"group {name}" for name in groups)]
    wanted += [*(f"extra {name}" for name in extras), *(f"with {name}" for name in requirements)]
    if pinned is not None:
        wanted.append(f"pinned {pinned} {hashlib.sha256((ROOT / pinned).read_bytes()).hexdigest()}")

    stamp = venv / STAMP
    try:
        seen: dict[str, Any] = json.loads(stamp.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        seen = {}
    same_base = seen.get("base") == base
    installed: list[str] = seen.get("installed", []) if same_base else []
    if wanted[0] not in installed:
        installed = []
    if set(wanted) <= set(installed):
        return

    started = time.monotonic()
    shown = venv.relative_to(ROOT) if ROOT in venv.parents else venv
    version = sys.version.split()[0]
    what = ["rolecall", *extras, *requirements, *(f"{group} tools" for group in groups)]
    what += [] if pinned is None else [f"what {pinned} lists"]
    say(f"installing {', '.join(what)} into {shown} (Python {version}); the first time takes a minute or two")
    if not same_base:
        create(venv)
    install(venv, groups, extras, requirements, pinned)
    scratch = stamp.with_suffix(".tmp")
    scratch.write_text(
        json.dumps({"base": base, "installed": sorted({*installed, *wanted})}), encoding="utf-8"
    )
    scratch.replace(stamp)
    say(f"{shown} is ready after {time.monotonic() - started:.0f} s")


def command_environment(venv: Path) -> dict[str, str]:
    """Return the environment of the command: the venv first on PATH, as if it were activated."""
    environment = dict(os.environ, VIRTUAL_ENV=str(venv))
    environment["PATH"] = os.pathsep.join([str(venv / "bin"), environment.get("PATH", os.defpath)])
    environment.pop("PYTHONHOME", None)
    if not os.access(os.path.expanduser("~"), os.W_OK):
        # Some containers give a home that can't be written; keep state and cache in the clone then.
        environment.setdefault("XDG_STATE_HOME", str(ROOT / ".rolecall" / "state"))
        environment.setdefault("XDG_CACHE_HOME", str(ROOT / ".rolecall" / "cache"))
    return environment


def main() -> None:
    check_python()
    parser = argparse.ArgumentParser(description="Run a command in a virtual environment of this clone.")
    parser.add_argument("--venv", default=".venv-rolecall", help="folder of the environment, from the clone")
    parser.add_argument("--group", action="append", default=[], help="dependency group to install")
    parser.add_argument("--extra", action="append", default=[], help="extra of the project to install")
    parser.add_argument(
        "--with", action="append", default=[], dest="requirements", help="further requirement"
    )
    parser.add_argument("--pinned", help="requirements file to install without dependencies")
    parser.add_argument("command", nargs="+", help="what to run, after --")
    chosen = parser.parse_args()
    command: list[str] = chosen.command

    venv = ROOT / chosen.venv
    with alone(venv):
        prepare(venv, chosen.group, chosen.extra, chosen.requirements, chosen.pinned)

    environment = command_environment(venv)
    program = shutil.which(command[0], path=environment["PATH"])
    if program is None:
        sys.exit(f"rolecall: there is no command {command[0]!r} in {venv}")
    os.chdir(str(ROOT))
    os.execve(program, command, environment)


if __name__ == "__main__":
    main()
