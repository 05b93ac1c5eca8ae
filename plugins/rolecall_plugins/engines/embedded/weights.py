"""The file that weights are served from, and how a checkpoint becomes one.

Weights from an update live in a file without a name, reached through this process's descriptor:
nothing is left behind, however the engine ends.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from attrs import frozen

from .serving_file import cache_folder, run_converter


@frozen(kw_only=True)
class WeightsFile:
    """A serving file: a cached one, or an open one without a name."""

    path: Path
    descriptor: int | None = None

    @classmethod
    def convert(cls, checkpoint: Path, like: WeightsFile) -> WeightsFile:
        """Convert a checkpoint of the same shape as the weights ``like``; blocks.

        Raises:
            GgufError: it is unreadable, or its shape differs.
        """
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=folder, prefix=".weights-")
        try:
            os.unlink(name)
            # The child inherits the descriptors, so these paths name the same files there.
            path = Path(f"/proc/self/fd/{descriptor}")
            inherited = (descriptor,) if like.descriptor is None else (descriptor, like.descriptor)
            run_converter(checkpoint, like.path, path, module=f"{__package__}.checkpoint", keep_fds=inherited)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path=path, descriptor=descriptor)

    @property
    def path_from_outside(self) -> str:
        """Where another process of this node finds it."""
        return str(self.path) if self.descriptor is None else f"/proc/{os.getpid()}/fd/{self.descriptor}"

    def close(self) -> None:
        """Let go of a file without a name; a cached one stays."""
        if self.descriptor is not None:
            os.close(self.descriptor)
