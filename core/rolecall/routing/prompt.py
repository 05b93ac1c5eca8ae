"""The prompt in a request's payload, for policies that route by it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def prompt_in(payload: Mapping[str, Any]) -> str | Sequence[int] | None:
    """Return the payload's token ids, its text, or its messages, one JSON line each; None if it has none.

    A conversation that goes on is thereby a text that goes on. Token ids are the payload's own object.
    """
    ids = payload.get("input_ids")
    if ids is not None:
        return ids
    text = payload.get("text")
    if isinstance(text, str):
        return text
    messages = payload.get("messages")
    if isinstance(messages, list):
        return "\n".join(json.dumps(message, ensure_ascii=False, default=str) for message in messages)
    return None
