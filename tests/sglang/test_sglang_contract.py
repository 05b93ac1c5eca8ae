"""The ``sglang`` backend keeps the contract of its kind, with the real server."""

from __future__ import annotations

from pathlib import Path

import pytest
from attrs import evolve

from rolecall.api import EngineLaunch, FromDisk
from rolecall.testing import EngineBackendContract
from rolecall.testing.free_port import free_port
from rolecall.testing.shared_engines import SharedEngines
from rolecall_plugins.engines.sglang import SglangBackend

pytestmark = pytest.mark.sglang


class TestSglangBackend(EngineBackendContract):
    plugin = SglangBackend
    long_answer_tokens = 4000

    @pytest.fixture(autouse=True)
    def _given(self, shared_engines: SharedEngines, checkpoints: tuple[Path, Path]) -> None:
        self._launch = shared_engines.launch(static=True)
        self._other_weights = checkpoints[1]

    @pytest.fixture
    def engines(self, shared_engines: SharedEngines) -> SharedEngines:
        return shared_engines

    def make_launch(self, folder: Path) -> EngineLaunch:
        return evolve(self._launch, port=free_port(), log_path=folder / "engine.log")

    def make_update(self, folder: Path) -> FromDisk:
        return FromDisk(path=self._other_weights)
