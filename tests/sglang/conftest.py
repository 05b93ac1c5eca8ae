"""Real SGLang on this machine's CPU: its engines, a checkpoint with real weights, and a trainer.

SGLang is that of the present environment, or of the one whose interpreter ``$ROLECALL_SGLANG_PYTHON``
names. See README.md in this folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from rolecall.api import EngineId, EngineLaunch, ModelId, RoleName
from rolecall.testing.free_port import free_port
from rolecall.testing.shared_engines import SharedEngines
from rolecall_plugins.engines.sglang import SglangBackend, SglangOptions
from rolecall_plugins.engines.sglang.engine import SglangEngine
from rolecall_plugins.engines.sglang.options import Device

HERE = Path(__file__).parent
START_S = 280.0
STOP_S = 30.0

# What SGLang needs to serve on a CPU that has neither AVX-512 nor AMX. Small pools start faster.
SERVER_ARGS: Mapping[str, Any] = {
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "grammar_backend": "xgrammar",
    "tool_call_parser": "qwen25",  # of some model; the tiny one is of none
    "disable_cuda_graph": True,
    "disable_overlap_schedule": True,
    "sleep_on_idle": True,  # an idle scheduler would keep a core busy
    "dtype": "float32",
    "max_total_tokens": 16384,
    "max_running_requests": 32,
    "mem_fraction_static": 0.3,
    "chunked_prefill_size": 8192,
}


# On a GPU, small enough that an engine is up in a minute.
GPU_SERVER_ARGS: Mapping[str, Any] = {
    "attention_backend": "triton",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "dtype": "bfloat16",
    "max_running_requests": 32,
    "mem_fraction_static": 0.1,
    "cuda_graph_max_bs_decode": 4,
    "disable_prefill_cuda_graph": True,
}
ON_GPU = os.environ.get("ROLECALL_SGLANG_DEVICE") == "cuda"
"""Where the engines of these tests run; the machine's first GPU, if it is asked for."""


@pytest.fixture
def free_ports() -> tuple[int, int]:
    return free_port(), free_port()


# SGLang turns these off in its own processes; both sides of an NCCL group have to agree on them.
NCCL_LIKE_SGLANG = {"NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0"}


class Trainer:
    """The process of ``trainer.py``; what it says on standard error is kept in ``log``."""

    def __init__(self, python: str, log: Path) -> None:
        path = os.environ.get("ROLECALL_SGLANG_PATH")
        self._log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [python, str(HERE / "trainer.py")],
                env={**os.environ, **NCCL_LIKE_SGLANG, **({"PYTHONPATH": path} if path else {})},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Run one command there and wait for its answer."""
        self.send(command, **arguments)
        return self.answer()

    def send(self, command: str, **arguments: Any) -> None:
        assert self._process.stdin is not None
        print(json.dumps({"command": command, **arguments}), file=self._process.stdin, flush=True)

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer = json.loads(self._process.stdout.readline() or '{"error": "the trainer has ended"}')
        assert "error" not in answer, f"{answer['error']}\n{self._log.read_text()[-4000:]}"
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


@pytest.fixture(scope="session")
def sglang_python() -> str:
    return os.environ.get("ROLECALL_SGLANG_PYTHON", sys.executable)


@pytest.fixture(scope="session")
def trainer(sglang_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    trainer = Trainer(sglang_python, tmp_path_factory.mktemp("trainer") / "log")
    yield trainer
    trainer.close()


@pytest.fixture(scope="session")
def checkpoints(trainer: Trainer, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two checkpoints of the same shape, with different weights."""
    folder = tmp_path_factory.mktemp("checkpoints")
    first, second = folder / "first", folder / "second"
    trainer.ask("checkpoint", path=str(first), seed=1)
    trainer.ask("checkpoint", path=str(second), seed=2)
    return first, second


@pytest.fixture(scope="session")
def sglang_options(sglang_python: str) -> SglangOptions:
    if ON_GPU:
        path = os.environ.get("ROLECALL_SGLANG_PATH")
        # Where SGLang is, if not in the interpreter's own packages; the trainer needs it too.
        environment = {"PYTHONPATH": path} if path else dict[str, str]()
        return SglangOptions(python=sglang_python, server_args=GPU_SERVER_ARGS, environment=environment)
    placeholders = os.environ.get("ROLECALL_SGLANG_PLACEHOLDERS", "sgl_kernel torchvision")
    environment = {
        "PYTHONPATH": str(HERE / "placeholders"),
        "PLACEHOLDER_PACKAGES": placeholders,
        # The model is tiny: more threads spend their time waiting for each other.
        "OMP_NUM_THREADS": "1",
    }
    if "sgl_kernel" in placeholders:
        environment["SGLANG_USE_CPU_ENGINE"] = "1"
    return SglangOptions(
        python=sglang_python, device=Device.CPU, server_args=SERVER_ARGS, environment=environment
    )


def make_launch(folder: Path, model_path: Path, options: SglangOptions, version: str | None) -> EngineLaunch:
    return EngineLaunch(
        engine_id=EngineId("model/replica-0"),
        role=RoleName("role"),
        model=ModelId("model"),
        model_path=model_path,
        served_model_name="tiny",
        host="127.0.0.1",
        port=free_port(),
        collectives_port=free_port(),
        device_ids=("0",),
        weight_version=version,
        log_path=folder / "engine.log",
        options=options,
    )


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_engines(
    checkpoints: tuple[Path, Path], sglang_options: SglangOptions, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[SharedEngines]:
    """The engines of the whole run; tests that end one take it."""
    static, versioned = (
        make_launch(tmp_path_factory.mktemp("engine"), checkpoints[0], sglang_options, None) for _ in range(2)
    )
    engines = SharedEngines(
        SglangBackend(), (static, versioned), start_timeout_s=START_S, stop_timeout_s=STOP_S
    )
    yield engines
    await engines.close()


@pytest_asyncio.fixture(loop_scope="session")
async def engine(shared_engines: SharedEngines) -> SglangEngine:
    """The shared versioned engine, awake."""
    engine = await shared_engines.get(static=False)
    assert isinstance(engine, SglangEngine)
    return engine


@pytest_asyncio.fixture(loop_scope="session")
async def client(engine: SglangEngine) -> AsyncIterator[httpx.AsyncClient]:
    """Whoever sends requests to the engine."""
    async with httpx.AsyncClient(base_url=engine.base_url, timeout=120, trust_env=False) as client:
        yield client


_LAST = ("test_sglang_death", "test_sglang_contract")
"""Modules whose tests end the shared engines."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.timeout(600))  # the first one starts the engine
    places = [place for place, item in enumerate(items) if item.path.parent == HERE]
    ours = sorted((items[place] for place in places), key=lambda item: item.path.stem in _LAST)
    for place, item in zip(places, ours, strict=True):
        items[place] = item
