"""A role's client with one real engine behind it, for tests of what a role makes of an engine's answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx


class OneEngine:
    """Implements :class:`~rolecall.interfaces.reward_adapter.ScoringClient` for raw payloads only."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def generate(self, payload: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        response = await self._http.post("/generate", json=dict(payload))
        assert response.status_code == 200, response.text
        return response.json()

    async def chat(self, messages: Any, **_: Any) -> str:
        raise AssertionError(f"nothing here chats: {messages!r:.80}")
