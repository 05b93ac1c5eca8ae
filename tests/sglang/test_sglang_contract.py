"""The ``sglang`` backend keeps the contract of its kind, with the real server."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from attrs import evolve

from rolecall.api import EngineBackend, EngineLaunch, FromDisk
from rolecall.testing.engine_backend_contract import EngineBackendContract
from rolecall.testing.shared_engines import SharedEngines
from rolecall_plugins.engines.sglang import SglangBackend

pytestmark = pytest.mark.sglang


class TestSglangBackend(EngineBackendContract):
    @pytest.fixture(autouse=True)
    def _given(self, shared_engines: SharedEngines, checkpoints: tuple[Path, Path]) -> None:
        self._launch = shared_engines.launch(static=True)
        self._other_weights = checkpoints[1]

    @pytest.fixture
    def engines(self, shared_engines: SharedEngines) -> SharedEngines:
        return shared_engines

    def make_backend(self) -> EngineBackend:
        return SglangBackend()

    def make_launch(self, folder: Path) -> EngineLaunch:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        return evolve(self._launch, port=port, log_path=folder / "engine.log")

    def make_update(self, folder: Path) -> FromDisk:
        return FromDisk(path=self._other_weights)
