"""The files of a new distribution: templates filled with its names, then written in one go.

Templates are the files beside this module: ``project`` for what all kinds share, and a folder a kind with
``package`` (its modules), ``testing`` (its tests), a summary, requirements and a piece of a job file.
Nothing is ever overwritten: the folder has to be empty, or not there.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

from rolecall import __version__
from rolecall.errors import ScaffoldError
from rolecall.plugins.contract import PROTOCOLS
from rolecall.plugins.kinds import PluginKind
from rolecall.scaffold.names import Names

_SUFFIX = ".in"
_TEMPLATES = files("rolecall.scaffold") / "templates"
_TEST = "test_plugin.py"


def render(names: Names, *, examples: Mapping[PluginKind, str]) -> dict[str, str]:
    """Return the distribution's files: path in it → text.

    ``examples`` has an installed plugin of the kinds that a piece of a job file also names.
    """
    kind = names.kind
    own = _TEMPLATES / kind.key
    values = {
        "name": names.name,
        "variable": names.name.upper(),
        "distribution": names.distribution,
        "package": names.package,
        "class_name": names.class_name,
        "kind": kind.label,
        "group": kind.group,
        "hook": kind.hook,
        "protocol": PROTOCOLS[kind].__name__,
        "contract": f"{PROTOCOLS[kind].__name__}Contract",
        "module": kind.label.split()[-1],
        "a_role": examples[PluginKind.ROLE],
        "an_engine": examples[PluginKind.ENGINE_BACKEND],
    }
    values["summary"] = _filled(own / "summary.txt.in", values).strip()
    values["job"] = _filled(own / "job.toml.in", values).strip()
    values["dependencies"] = ", ".join(f'"{each}"' for each in _dependencies(own))

    project, source = _TEMPLATES / "project", f"src/{names.package}"
    chosen = {
        "pyproject.toml": project / "pyproject.toml.in",
        "README.md": project / "README.md.in",
        "LICENSE": project / "LICENSE.in",
        ".gitignore": project / "gitignore.in",
        f"{source}/__init__.py": project / "package.py.in",
        **{f"{source}/{name}": template for name, template in _folder(own / "package").items()},
        **{f"tests/{name}": template for name, template in _folder(own / "testing").items()},
    }
    chosen[f"tests/test_{names.package}.py"] = chosen.pop(f"tests/{_TEST}")
    return {path: _filled(template, values) for path, template in chosen.items()} | {f"{source}/py.typed": ""}


def write(texts: Mapping[str, str], folder: Path) -> None:
    """Write the files into ``folder``.

    Raises:
        ScaffoldError: something is there already, or it can't be written to.
    """
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ScaffoldError(f"{folder} is there and not empty; choose another folder with --to DIR")
        for path, text in texts.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("x", encoding="utf-8") as stream:
                stream.write(text)
    except OSError as error:
        raise ScaffoldError(f"{folder} can't be written: {error}") from error


def _folder(folder: Traversable) -> dict[str, Traversable]:
    return {entry.name.removesuffix(_SUFFIX): entry for entry in folder.iterdir()}


def _filled(template: Traversable, values: Mapping[str, str]) -> str:
    return Template(template.read_text(encoding="utf-8")).substitute(values)


def _dependencies(own: Traversable) -> list[str]:
    listed = own / "requirements.txt.in"
    others = listed.read_text(encoding="utf-8").split() if listed.is_file() else []
    return sorted([*others, f"rolecall>={__version__}"])
