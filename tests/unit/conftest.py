"""Real distributions in a temporary folder: entry points as pip writes them, nothing patched."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings

from rolecall.testing.manager_rig import ManagerRig, ok
from rolecall.testing.virtual_time import run_virtual

# A busy machine is no fault of what is tested.
settings.register_profile("rolecall", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("rolecall")


class FakeSite:
    """A site-packages folder that comes first on ``sys.path``."""

    PAGER: ClassVar[str] = """
    from rolecall.api import hookimpl

    class Pager:
        name = "pager"
        api_version = 1

        def on_event(self, event):
            pass

    @hookimpl
    def rolecall_observer():
        return Pager
"""
    """Code of a module with a sound observer ``pager``, indented by four."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(
        self,
        name: str,
        version: str = "1.0",
        *,
        entry_points: Mapping[str, Mapping[str, str]] | None = None,
        modules: Mapping[str, str] | None = None,
    ) -> Path:
        """Write a distribution (``group → name → module``) and its modules; return its dist-info."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for module, code in (modules or {}).items():
            (self.folder / f"{module}.py").write_text(dedent(code), encoding="utf-8")
        info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8"
        )
        lines = [
            line
            for group, points in (entry_points or {}).items()
            for line in (f"[{group}]", *(f"{point} = {target}" for point, target in points.items()), "")
        ]
        (info / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
        importlib.invalidate_caches()
        return info


@pytest.fixture
def fake_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSite]:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield FakeSite(folder)
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]


@pytest.fixture(scope="session")
def docs_script() -> Callable[[str], ModuleType]:
    """Loads a script of ``docs/`` by its file's name."""

    def load(name: str) -> ModuleType:
        script = Path(__file__).parents[2] / "docs" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(name, script)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # its classes look for their module there
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Any]:
    """Plays a scenario with a manager in virtual time, started by default; options are the rig's."""

    def run(scenario: Callable[[ManagerRig], Awaitable[Any]], *, started: bool = True, **options: Any) -> Any:
        async def main() -> Any:
            rig = ManagerRig(tmp_path, **options)
            if started:
                assert ok(await rig.manager.start())
            return await scenario(rig)

        return run_virtual(main())

    return run
