"""A judge's client that gives the role's chat-template settings with every chat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rolecall.api import ScoringClient


class TemplateClient:
    """Passes everything on to ``client``; a caller's own ``chat_template_kwargs`` win."""

    def __init__(self, client: ScoringClient, chat_template_kwargs: Mapping[str, Any]) -> None:
        self._client = client
        self._kwargs = dict(chat_template_kwargs)

    async def generate(
        self,
        payload: Mapping[str, Any],
        *,
        model: str | None = None,
        route_key: str | None = None,
        affinity_key: str | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        return await self._client.generate(
            payload, model=model, route_key=route_key, affinity_key=affinity_key, timeout_s=timeout_s
        )

    async def chat(
        self,
        messages: list[dict[str, Any]],
        *,
        sampling: Mapping[str, Any] | None = None,
        model: str | None = None,
        route_key: str | None = None,
        affinity_key: str | None = None,
        timeout_s: float | None = None,
    ) -> str:
        return await self._client.chat(
            messages,
            sampling={"chat_template_kwargs": self._kwargs, **(sampling or {})},
            model=model,
            route_key=route_key,
            affinity_key=affinity_key,
            timeout_s=timeout_s,
        )
