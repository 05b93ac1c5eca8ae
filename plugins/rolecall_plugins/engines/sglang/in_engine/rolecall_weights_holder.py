"""Keeps a model's weights in host memory while its engine sleeps; runs inside SGLang's schedulers.

SGLang calls a function of this module for ``/update_weights_from_tensor`` with ``load_format`` set to
the function's import path, which ``--custom-weight-loader`` has to list. That is SGLang's own extension
point: nothing of it is patched. Every model-parallel rank runs the command on its own part of the model.

On a GPU the weights' memory comes and goes with the memory saver, at the same addresses:

* :func:`keep` copies the weights into pinned host memory, which is allocated once and used again;
* :func:`restore` copies them back, into memory that the saver has mapped again.

Static weights are kept once, after the start; then a release copies nothing. The memory saver's own CPU
backup copies down on every release and allocates its pinned memory each time: 7 to 11 s for 15 GiB,
where the bus needs 0.3 s.

On a CPU there is no memory saver: :func:`drop` gives the weights' storage back to the system and
:func:`restore` allocates it again, without content; loading the checkpoint again is the caller's business.

A scheduler dies of an exception that a weight loader raises, so none leaves a command. What happened is
written to ``$ROLECALL_HOLDER_DIR/<rank's process id>.json``, which the caller reads and acts on
(``rolecall_plugins.engines.sglang.holder_client``). Imports nothing but the standard library and torch:
SGLang may live in an environment that has no rolecall.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import torch  # pyright: ignore[reportMissingImports]

DIRECTORY_VARIABLE = "ROLECALL_HOLDER_DIR"

_CHUNK_BYTES = 2**30
"""Torch rounds pinned memory up to a power of two: chunks of one keep that from doubling the copy."""

_KEPT = "_rolecall_kept_weights"


class _HostCopy:
    """Pinned memory that holds the bytes of ``storages``, one after the other."""

    def __init__(self, storages: list[Any]) -> None:
        self.storages = storages
        self.sizes = [storage.nbytes() for storage in storages]
        total = sum(self.sizes)
        whole, rest = divmod(total, _CHUNK_BYTES)
        sizes = [_CHUNK_BYTES] * whole + ([rest] if rest else [])
        self.chunks = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for size in sizes]

    def fits(self, storages: list[Any]) -> bool:
        return self.sizes == [storage.nbytes() for storage in storages]

    def copy(self, *, down: bool) -> None:
        position = 0
        for storage in self.storages:
            weights = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
            done = 0
            while done < weights.numel():
                index, start = divmod(position + done, _CHUNK_BYTES)
                size = min(weights.numel() - done, _CHUNK_BYTES - start)
                host, device = self.chunks[index][start : start + size], weights[done : done + size]
                (host if down else device).copy_(device if down else host, non_blocking=True)
                done += size
            position += weights.numel()
        torch.cuda.synchronize()


def keep(model: Any, named_tensors: Any) -> None:
    """Copy the present weights into host memory. Repeats copy again, into the same memory."""
    del named_tensors

    def command() -> None:
        storages = _storages(model.parameters(), model.buffers())
        if any(storage.device.type != "cuda" for storage in storages):
            raise RuntimeError("keep copies weights from a CUDA device, and these lie elsewhere")
        kept: _HostCopy | None = getattr(model, _KEPT, None)
        if kept is None or not kept.fits(storages):
            kept = _HostCopy(storages)
        kept.storages = storages
        kept.copy(down=True)
        setattr(model, _KEPT, kept)

    _run("keep", model, command)


def drop(model: Any, named_tensors: Any) -> None:
    """Free the storage of weights in host memory; ``restore`` allocates it again."""
    del named_tensors

    def command() -> None:
        storages = [each.untyped_storage() for each in model.parameters()]
        if any(storage.device.type != "cpu" for storage in storages):
            raise RuntimeError("drop frees weights in host memory, and these lie elsewhere")
        sizes = getattr(model, _KEPT, None) or {}
        for storage in storages:
            if storage.nbytes():
                sizes[storage._cdata] = storage.nbytes()
                storage.resize_(0)
        setattr(model, _KEPT, sizes)

    _run("drop", model, command)


def restore(model: Any, named_tensors: Any) -> None:
    """Bring the kept weights back; on a CPU only their memory."""
    del named_tensors

    def command() -> None:
        kept: Any = getattr(model, _KEPT, None)
        if kept is None:
            raise RuntimeError("nothing was kept or dropped before")
        if isinstance(kept, _HostCopy):
            kept.copy(down=False)
            return
        for parameter in model.parameters():
            storage = parameter.untyped_storage()
            if not storage.nbytes():
                storage.resize_(kept[storage._cdata])

    _run("restore", model, command)


def report(model: Any, named_tensors: Any) -> None:
    """Change nothing; tell how many bytes the weights occupy."""
    del named_tensors
    _run("report", model, lambda: None)


def _storages(*groups: Iterable[Any]) -> list[Any]:
    """Every storage of the tensors once: tied weights share one."""
    found: dict[int, Any] = {}
    for tensor in chain(*groups):
        storage = tensor.untyped_storage()
        if storage.nbytes():
            found.setdefault(storage.data_ptr(), storage)
    return list(found.values())


def _run(name: str, model: Any, command: Callable[[], None]) -> None:
    answer: dict[str, Any] = {"command": name, "error": None}
    began = time.perf_counter()
    try:
        with torch.inference_mode():
            command()
            answer["seconds"] = time.perf_counter() - began
            answer["weights_bytes"] = sum(storage.nbytes() for storage in _storages(model.parameters()))
            kept = getattr(model, _KEPT, None)
            answer["host_bytes"] = sum(kept.sizes) if isinstance(kept, _HostCopy) else 0
    except Exception as error:  # noqa: BLE001 - see the module's docstring: it would end the scheduler
        answer["error"] = f"{type(error).__name__}: {error}"
    target = Path(os.environ[DIRECTORY_VARIABLE]) / f"{os.getpid()}.json"
    # A follower's ranks are commanded through the head; nobody has made the folder on their node.
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part")
    part.write_text(json.dumps(answer), encoding="utf-8")
    part.replace(target)
