"""Paths as a gateway sees them: without the point where it is mounted."""

from __future__ import annotations

from starlette.types import Scope


def path_in(scope: Scope) -> str:
    """Return a request's path below the gateway's mount point (``/teacher/generate`` → ``/generate``)."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))
