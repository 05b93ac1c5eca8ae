"""A pytest plugin: the wrong plugins that were collected are installed, as one distribution.

A test class may say which tests it ``concerns``, as a pattern of their names; the others are left out.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rolecall.plugins.kinds import PluginKind

METADATA = "Metadata-Version: 2.1\nName: wrong-plugins\nVersion: 1.0\n"

MODULE = """
from rolecall.api import hookimpl
from {module} import {cls}

@hookimpl
def {hook}():
    return {cls}
"""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    concerned = [item for item in items if re.search(getattr(item.cls, "concerns", ""), item.name)]
    config.hook.pytest_deselected(items=[item for item in items if item not in concerned])
    items[:] = concerned


@pytest.fixture(scope="session", autouse=True)
def _installed(request: pytest.FixtureRequest) -> Iterator[None]:
    tests = {item.cls for item in request.session.items}
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder)
        groups: dict[PluginKind, set[str]] = {}
        for test in tests:
            plugin, entry = test.plugin, f"entry_of_{test.plugin.name}"
            module = MODULE.format(module=plugin.__module__, cls=plugin.__name__, hook=test.kind.hook)
            (site / f"{entry}.py").write_text(module)
            groups.setdefault(test.kind, set()).add(f"{plugin.name} = {entry}")
        info = site / "wrong_plugins-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(METADATA)
        (info / "entry_points.txt").write_text(
            "".join(f"[{kind.group}]\n" + "\n".join(sorted(names)) + "\n" for kind, names in groups.items())
        )
        sys.path.insert(0, folder)
        yield
        sys.path.remove(folder)
