"""Real distributions in a temporary folder: entry points as pip writes them, nothing patched."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no fault of what is tested.
settings.register_profile("rolecall", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("rolecall")


class FakeSite:
    """A site-packages folder that comes first on ``sys.path``."""

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
