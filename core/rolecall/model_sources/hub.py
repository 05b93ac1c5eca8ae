"""A model on the Hugging Face hub, through the hub's own library where that is installed."""

from __future__ import annotations

from pathlib import Path

from rolecall.errors import ModelSourceError
from rolecall.model_sources.source import HubSource

_OTHER_FORMATS = ["*.bin", "*.h5", "*.msgpack", "*.onnx", "onnx/*", "*.pt", "*.pth", "*.ckpt", "*.tflite"]
"""The same weights again, in formats that no engine here loads."""


def fetch_hub(source: HubSource, models: Path) -> Path:
    """Return the folder of the repository's files; the library's own cache and locks are used.

    Raises:
        ModelSourceError: the library is missing, the hub can't be reached, or it has no such
            repository or revision.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ModelSourceError(
            f"hf:{source.repo} needs the package huggingface_hub: pip install huggingface_hub"
        ) from error
    at = f"@{source.revision}" if source.revision else ""
    try:
        folder = snapshot_download(
            source.repo,
            revision=source.revision,
            cache_dir=models / "hf",
            ignore_patterns=_OTHER_FORMATS,
        )
    except Exception as error:  # it raises its HTTP client's errors too, and changes clients
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelSourceError(
            f"hf:{source.repo}{at} can't be fetched: {lines[0]}. Is the hub reachable (HF_ENDPOINT), is "
            "the name right, does it need HF_TOKEN? Or name a local path as the source"
        ) from error
    return Path(folder)
