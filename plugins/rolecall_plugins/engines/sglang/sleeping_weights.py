"""How an engine's weights come back after a sleep: three ways, one interface.

Used by the engine object around its own release and resume. Each way is told of every change of the
weights, and refuses a sleep from which it could not bring them back, before anything has been released.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from rolecall.api import EngineError, EngineLaunch
from rolecall_plugins.engines.http_control import SglangControl

from .holder_client import WeightsHolder
from .options import Device, SglangOptions, WeightsAsleep


class SleepingWeights(Protocol):
    """One way. Calls come in the order of the engine's life, never two at a time."""

    async def started(self) -> None:
        """The engine has its first weights."""
        ...

    async def changed(self, path: Path | None) -> None:
        """The engine has other weights now, from ``path`` or, if None, from memory."""
        ...

    async def before_release(self) -> None:
        """The weights' memory is about to be given back."""
        ...

    async def after_resume(self, version: str | None) -> None:
        """The weights' memory is there again; bring their content. ``version`` is what they are."""
        ...

    def files(self) -> tuple[Path, ...]:
        """What ``after_resume`` will read from disk."""
        ...


class HostCopy:
    """rolecall's own pinned copy, made when the weights have changed; a release copies nothing."""

    def __init__(self, holder: WeightsHolder, *, is_static: bool) -> None:
        self._holder = holder
        self._is_static = is_static
        self._is_current = False

    async def started(self) -> None:
        # Versioned weights change before the first sleep; their copy would be made for nothing.
        if self._is_static:
            await self._keep()

    async def changed(self, path: Path | None) -> None:
        del path  # the copy comes from the device, wherever the weights came from
        self._is_current = False

    async def before_release(self) -> None:
        if not self._is_current:
            await self._keep()

    async def after_resume(self, version: str | None) -> None:
        del version
        await self._holder.restore()

    def files(self) -> tuple[Path, ...]:
        return ()

    async def _keep(self) -> None:
        await self._holder.keep()
        self._is_current = True


class SaversBackup:
    """SGLang's memory saver copies the weights down and up by itself."""

    async def started(self) -> None: ...

    async def changed(self, path: Path | None) -> None: ...

    async def before_release(self) -> None: ...

    async def after_resume(self, version: str | None) -> None: ...

    def files(self) -> tuple[Path, ...]:
        return ()


class Reload:
    """The weights are read again from where they came."""

    def __init__(self, control: SglangControl, path: Path | None) -> None:
        self._control = control
        self._path = path

    async def started(self) -> None: ...

    async def changed(self, path: Path | None) -> None:
        self._path = path

    async def before_release(self) -> None:
        self._source()

    async def after_resume(self, version: str | None) -> None:
        await self._control.update_weights_from_disk(str(self._source()), version, load_format="auto")

    def files(self) -> tuple[Path, ...]:
        return () if self._path is None else (self._path,)

    def _source(self) -> Path:
        if self._path is None:
            raise EngineError(
                'weights_while_asleep = "reload", but the present weights came from memory, not from a '
                'checkpoint, and would be lost; use "host_copy" or "memory_saver", or update from disk'
            )
        return self._path


def sleeping_weights(launch: EngineLaunch, control: SglangControl, holder: WeightsHolder) -> SleepingWeights:
    """Return the way that the launch's options ask for."""
    options: SglangOptions = launch.options
    match options.weights_asleep:
        case WeightsAsleep.HOST_COPY if options.device is Device.CUDA:
            return HostCopy(holder, is_static=launch.is_static)
        case WeightsAsleep.MEMORY_SAVER:
            return SaversBackup()
        case _:
            is_checkpoint = options.server_args.get("load_format") != "dummy"
            return Reload(control, launch.model_path if is_checkpoint else None)
