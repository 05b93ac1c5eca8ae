"""The folder of fetched models: where it is, who may change it, how files are compared."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

_CHUNK_BYTES = 1024**2


def models_folder(cache_dir: Path | None) -> Path:
    """``models`` under ``cache_dir``, else ``$ROLECALL_CACHE``, else the XDG cache's ``rolecall``."""
    if cache_dir is not None:
        return cache_dir / "models"
    configured = os.environ.get("ROLECALL_CACHE")
    if configured:
        return Path(configured) / "models"
    xdg = os.environ.get("XDG_CACHE_HOME")
    return Path(xdg or Path.home() / ".cache") / "rolecall" / "models"


@contextmanager
def locked(lock_file: Path) -> Generator[None]:
    """Hold a lock between processes; waits for it, and a holder that dies lets go of it."""
    with lock_file.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
