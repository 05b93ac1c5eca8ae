"""What the engine holds in memory, by tag, and the only place that changes it.

``weights`` is the mapped serving file, as llama.cpp and the NumPy forward read it; ``kv_cache`` is
llama.cpp's cache. llama.cpp loads and frees both together, so while only one tag is resident its
memory is held in another form: the file's pages kept mapped, or pages reserved for the cache. A
machine without a GPU has no ``cuda_graph``: the tag is accepted and holds nothing.

``release`` and ``resume`` block (half a second to load) and belong to the main thread;
``numpy_model`` may be called from the scorer's thread. The caller sees to it that nothing runs.
"""

from __future__ import annotations

import gc
import mmap
import threading
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

from .allocator import return_free_memory
from .forward import NumpyModel
from .gguf_file import GgufFile
from .llama_runtime import LlamaRuntime, RuntimeFault, RuntimeLimits

_F16_BYTES = 2


class Tag(StrEnum):
    """Tags of SGLang's protocol."""

    WEIGHTS = "weights"
    KV_CACHE = "kv_cache"
    CUDA_GRAPH = "cuda_graph"


HELD_TAGS = frozenset({Tag.WEIGHTS, Tag.KV_CACHE})
"""Tags that stand for memory of this process."""


class EngineMemory:
    """The loaded model, or the parts of it that are resident. Starts with nothing resident."""

    def __init__(self, path: Path, limits: RuntimeLimits) -> None:
        self._path = path
        self._limits = limits
        self._runtime: LlamaRuntime | None = None
        self._mapped: GgufFile | None = None
        self._numpy: NumpyModel | None = None
        self._reserved: mmap.mmap | None = None
        self._resident: frozenset[Tag] = frozenset()
        self._open_lock = threading.Lock()

    @property
    def resident(self) -> frozenset[Tag]:
        """Tags whose memory is in this process now."""
        return self._resident

    @property
    def awake(self) -> bool:
        """Whether everything is resident, so that generation is possible."""
        return self._resident == HELD_TAGS

    @property
    def runtime(self) -> LlamaRuntime:
        """The loaded runtime.

        Raises:
            RuntimeFault: something is released.
        """
        if self._runtime is None:
            raise RuntimeFault(f"nothing is loaded; resident: {sorted(self._resident) or 'nothing'}")
        return self._runtime

    def numpy_model(self) -> NumpyModel:
        """The same weights for the NumPy forward, mapped at first use."""
        with self._open_lock:
            if Tag.WEIGHTS not in self._resident:
                raise RuntimeFault("the weights are released")
            if self._numpy is None:
                self._numpy = NumpyModel(self._map())
            return self._numpy

    def release(self, tags: Iterable[Tag]) -> None:
        """Give back the tags' memory; repeats do nothing."""
        self._become(self._resident - frozenset(tags))

    def resume(self, tags: Iterable[Tag]) -> None:
        """Take the tags' memory again, weights from the same file; repeats do nothing.

        Raises:
            RuntimeFault: the file can't be loaded; the resident tags are as before.
        """
        self._become(self._resident | (frozenset(tags) & HELD_TAGS))

    def replace_weights(self, path: Path) -> None:
        """Serve another file of the same shape; only while awake.

        Raises:
            RuntimeFault: the new file can't be loaded; the old weights are loaded again.
        """
        old = self._path
        self._become(frozenset())
        self._path = path
        try:
            self._become(HELD_TAGS)
        except RuntimeFault:
            self._path = old
            self._become(HELD_TAGS)
            raise

    def _become(self, resident: frozenset[Tag]) -> None:
        if resident == self._resident:
            return
        if resident == HELD_TAGS:
            self._reserved = None
            try:
                self._runtime = LlamaRuntime(self._path, self._limits)
            except RuntimeFault:
                self._hold_parts(self._resident)
                raise
            if self._mapped is not None:
                self._mapped.let_go()  # llama.cpp maps the same pages now
        else:
            if self._runtime is not None:
                self._runtime.close()
                self._runtime = None
            self._hold_parts(resident)
        self._resident = resident

    def _hold_parts(self, resident: frozenset[Tag]) -> None:
        """Hold the memory of at most one tag without the runtime."""
        if Tag.WEIGHTS in resident:
            self._map().touch()
        else:
            self._numpy = self._mapped = None
        if Tag.KV_CACHE in resident:
            if self._reserved is None:
                self._reserved = _reserve(self._cache_bytes())
        else:
            self._reserved = None
        gc.collect()
        return_free_memory()

    def _map(self) -> GgufFile:
        if self._mapped is None:
            self._mapped = GgufFile(self._path, with_arrays=False)
        return self._mapped

    def _cache_bytes(self) -> int:
        file = GgufFile(self._path, with_arrays=False)
        heads = file.require("llama.attention.head_count")
        kv_heads = file.metadata.get("llama.attention.head_count_kv", heads)
        width = file.require("llama.embedding_length") // heads * kv_heads
        tokens = self._limits.context_tokens * self._limits.parallel_requests
        return tokens * file.require("llama.block_count") * 2 * width * _F16_BYTES


def _reserve(size: int) -> mmap.mmap:
    reserved = mmap.mmap(-1, size)
    for offset in range(0, size, mmap.PAGESIZE):
        reserved[offset] = 1
    return reserved
