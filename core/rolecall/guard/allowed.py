"""What passes the guard: a short list of paths, and nothing that is not on it. Pure.

An engine's HTTP server takes requests and commands on one port. Commands (pause, release, resume,
weight updates, sessions, profiling, and whatever a new version adds) come from the worker on loopback
and never through the guard, so the list says what may pass, not what may not.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from attrs import frozen


class Passage(Enum):
    """How a request passes.

    WORK: only through an open door, under a permit, since it makes the engine generate. Health checks
        are work: a ``/health`` that runs a token through the scheduler is what SGLang answers by default.
    CANCEL: at any time.
    METADATA: at any time, with the fields of the answer filtered.
    """

    WORK = "work"
    CANCEL = "cancel"
    METADATA = "metadata"


@frozen(kw_only=True)
class Entry:
    """One path that passes."""

    method: str
    path: str
    passage: Passage


ENTRIES: Mapping[str, Entry] = {
    path: Entry(method=method, path=path, passage=passage)
    for method, passage, paths in (
        (
            "POST",
            Passage.WORK,
            ("/generate", "/v1/chat/completions", "/chat/completions", "/v1/completions"),
        ),
        ("GET", Passage.WORK, ("/health", "/health_generate")),
        ("POST", Passage.CANCEL, ("/abort_request", "/close_session")),
        (
            "GET",
            Passage.METADATA,
            ("/v1/models", "/server_info", "/get_server_info", "/model_info", "/get_model_info"),
        ),
    )
    for path in paths
}
"""Path → entry. The path is sent on as it stands here, never as it came."""

ALLOWED = ", ".join(f"{entry.method} {entry.path}" for entry in ENTRIES.values())
"""The list as errors name it."""
