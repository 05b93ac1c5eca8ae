"""What engines over the shared control protocol do by one call each, whoever started them."""

from __future__ import annotations

from .http_control import SglangControl

CANARY_PROMPT = (504, 3575, 282, 4649, 314, 7042, 30, 378, 3575, 282)
"""Token ids that every vocabulary of a language model has."""


class ControlledEngine:
    """The calls of :class:`rolecall.api.Engine` that are the protocol's own. For engine classes to build on.

    static: its weights never change, so they have no version.
    """

    def __init__(self, base_url: str, *, static: bool) -> None:
        self.base_url = base_url
        self._static = static
        self._control = SglangControl(base_url)

    async def pause(self) -> None:
        # Abort mode: after any other, a flush leaves requests behind that end SGLang's scheduler later.
        await self._control.pause("abort")

    async def abort_all(self) -> None:
        await self._control.abort_all()

    async def flush(self) -> bool:
        return await self._control.flush()

    async def continue_generation(self) -> None:
        await self._control.continue_generation()

    async def weight_version(self) -> str | None:
        version = (await self._control.model_info()).get("weight_version")
        return None if version is None or self._static else str(version)
