"""The registry as a Ray actor, and its clients.

The actor is named ``registry`` in the job's namespace and belongs to the job process, so it ends with
it. Ray restarts it after a crash; it is empty then, and managers fill it again because publishing the
same snapshot twice is harmless. Until that has happened readers get ``RegistryUnavailableError``.
"""

from __future__ import annotations

import asyncio
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from rolecall.discovery.registry import Published, Registry, SnapshotReader
from rolecall.errors import RegistryUnavailableError, RolecallError

ACTOR_NAME = "registry"

_WAITERS = 10_000
"""Calls that the actor serves at once; each waiting gateway takes one."""

_ANSWER_S = 10.0
"""How long a call may take beyond the wait it asked for."""


class RegistryActor:
    """The Ray side: nothing but :class:`Registry` behind remote calls."""

    def __init__(self) -> None:
        self._registry = Registry()

    async def publish(self, role: str, snapshot_json: str) -> bool:
        return self._registry.publish(role, snapshot_json)

    async def invalidate(self, role: str) -> None:
        self._registry.invalidate(role)

    async def read(self, role: str, etag: str | None, wait_s: float) -> Published | None:
        return await self._registry.read(role, etag, wait_s)


def create_registry(namespace: str) -> RayRegistry:
    """Start the job's registry actor and return a client of it.

    The actor ends when the returned client (its handle) is dropped or this process ends.
    """
    actor: Any = ray.remote(RegistryActor)
    handle = actor.options(
        name=ACTOR_NAME, namespace=namespace, num_cpus=0, max_concurrency=_WAITERS, max_restarts=-1
    ).remote()
    return RayRegistry(handle)


def find_registry(namespace: str) -> RayRegistry:
    """Return a client of a running job's registry, from any process on its Ray.

    Raises:
        RegistryUnavailableError: there is no such actor in the namespace.
    """
    try:
        return RayRegistry(ray.get_actor(ACTOR_NAME, namespace=namespace))
    except ValueError as error:
        raise RegistryUnavailableError(
            f"there is no registry actor in Ray namespace {namespace!r}; is the job running?"
        ) from error


class RayRegistry:
    """Calls the registry actor. The handle inside may be sent to other Ray processes."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    async def publish(self, role: str, snapshot_json: str) -> bool:
        """See :meth:`Registry.publish`; also raises ``RegistryUnavailableError``."""
        return await self._call(self.handle.publish.remote(role, snapshot_json), 0.0)

    async def invalidate(self, role: str) -> None:
        """See :meth:`Registry.invalidate`; also raises ``RegistryUnavailableError``."""
        await self._call(self.handle.invalidate.remote(role), 0.0)

    async def read(self, role: str, etag: str | None = None, wait_s: float = 0.0) -> Published | None:
        """See :meth:`Registry.read`."""
        return await self._call(self.handle.read.remote(role, etag, wait_s), wait_s)

    def reader(self, role: str) -> SnapshotReader:
        """Return a reader of one role."""
        return _ActorReader(self, role)

    async def _call(self, reference: Any, wait_s: float) -> Any:
        try:
            async with asyncio.timeout(wait_s + _ANSWER_S):
                return await reference
        except RayTaskError as error:
            original = error.cause
            if isinstance(original, RolecallError):
                raise original from error
            raise RegistryUnavailableError(f"the registry actor broke: {original}") from error
        except TimeoutError as error:
            raise RegistryUnavailableError("the registry actor does not answer") from error
        except RayError as error:
            raise RegistryUnavailableError(f"the registry actor can't be reached: {error}") from error


class _ActorReader:
    def __init__(self, registry: RayRegistry, role: str) -> None:
        self._registry = registry
        self._role = role

    async def read(self, etag: str | None, wait_s: float) -> Published | None:
        return await self._registry.read(self._role, etag, wait_s)

    async def aclose(self) -> None:
        pass
