"""llama.cpp in this process, through xllamacpp: load, decode on one slot, unload.

Used from the server's main thread, except ``decode``, which blocks a worker thread for one
request while llama.cpp batches all of them. Owns the native server object, so also the memory of
its weights and KV cache; holds no request state.

Facts about xllamacpp 2026.10 that shape this file:

* Construction holds the GIL, and installs signal handlers for SIGINT and SIGTERM in C; both are
  dealt with by constructing on the main thread with the signals blocked.
* It always opens an HTTP port of its own. It is bound to loopback, on a port the system picks,
  behind a random key, and never used.
* A generation can only be cancelled from its callback. ``return_progress`` makes callbacks during
  a long prefill too, one a batch, so that an abort never waits for a whole prompt.
"""

from __future__ import annotations

import gc
import json
import math
import secrets
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import xllamacpp as _xllamacpp
from attrs import frozen

from .allocator import return_free_memory
from .sampling import SamplingParams

_native: Any = _xllamacpp  # a compiled module without type information

_LOWEST_LOGPROB = math.log(2**-149)
"""Of the smallest float32 above zero."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class RuntimeFault(Exception):
    """llama.cpp refused to load or to decode; the message is its own."""


@frozen(kw_only=True)
class RuntimeLimits:
    """Sizes fixed when the runtime is loaded."""

    context_tokens: int
    parallel_requests: int
    threads: int
    batch_tokens: int


@frozen(kw_only=True)
class Token:
    """One generated token: log-probability under the model itself, before temperature.

    ``top`` are the most probable (id, log-probability) pairs, as many as were asked for.
    """

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@frozen(kw_only=True)
class DecodeEnd:
    """How a decode ended: ``cached_tokens`` of the prompt came from the slot's cache."""

    cached_tokens: int


class LlamaRuntime:
    """A loaded model with its KV cache."""

    def __init__(self, path: Path | str, limits: RuntimeLimits) -> None:
        """Load; main thread only, blocks it for about half a second.

        Raises:
            RuntimeFault: llama.cpp can't load the file.
        """
        params = _native.CommonParams()
        params.model.path = str(path)
        params.n_ctx = limits.context_tokens * limits.parallel_requests
        params.n_parallel = limits.parallel_requests
        params.n_batch = params.n_ubatch = limits.batch_tokens
        for cpu in (params.cpuparams, params.cpuparams_batch):
            cpu.n_threads = limits.threads
            cpu.poll = 0  # a spinning idle thread would starve the other engines of the machine
        params.cache_ram_mib = 0  # no copies of old prompts outside the KV cache
        params.cache_idle_slots = False
        params.n_ctx_checkpoints = 0
        params.fit_params = False
        params.warmup = False
        params.use_jinja = False
        params.ui = False
        params.endpoint_slots = False
        params.n_threads_http = 1
        params.api_keys = [secrets.token_hex(32)]
        params.hostnames = ["127.0.0.1"]
        params.port = 0
        params.verbosity = 1
        self._server: Any = _construct(params)

    def close(self) -> None:
        """Free weights and cache, back to the system. No decode may be under way."""
        self._server = None
        gc.collect()
        return_free_memory()

    def decode(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams,
        *,
        slot: int,
        new_tokens: int,
        seed: int,
        top_logprobs: int,
        reuse_cache: bool,
        on_token: Callable[[Token], None],
        stop_now: Callable[[], bool],
    ) -> DecodeEnd:
        """Generate up to ``new_tokens`` after exactly the ids of ``prompt``; blocks.

        ``on_token`` sees every token in order. ``stop_now`` is asked at each token and at each
        batch of the prompt; once it is true, decoding is cancelled.

        Raises:
            RuntimeFault: llama.cpp refused the request or failed in it.
        """
        request = {
            "prompt": list(prompt),
            "n_predict": new_tokens,
            "id_slot": slot,
            "cache_prompt": reuse_cache,
            "seed": seed,
            "n_probs": max(top_logprobs, 1),
            "stream": True,
            "return_progress": True,
            **sampling.llama_parameters(),
        }
        faults: list[str] = []
        cached_tokens = 0

        def take(chunk: bytes) -> bool:
            nonlocal cached_tokens
            answer = json.loads(chunk)
            if "error" in answer:
                faults.append(str(answer["error"].get("message", answer["error"])))
                return True
            progress = answer.get("prompt_progress")
            if progress is not None:
                cached_tokens = progress["cache"]
            for choice in answer.get("choices", ()):
                for entry in (choice.get("logprobs") or {}).get("content") or ():
                    on_token(_token(entry, top_logprobs))
            return stop_now()

        self._server.handle_completions(json.dumps(request).encode(), take)
        if faults:
            raise RuntimeFault(faults[0])
        return DecodeEnd(cached_tokens=cached_tokens)


def _token(entry: dict[str, Any], top: int) -> Token:
    pairs = tuple((other["id"], _finite(other["logprob"])) for other in entry["top_logprobs"][:top])
    return Token(id=entry["id"], logprob=_finite(entry["logprob"]), top=pairs)


def _finite(logprob: float | None) -> float:
    """llama.cpp writes null for a probability that float32 can't hold; JSON knows no infinity."""
    return _LOWEST_LOGPROB if logprob is None else logprob


def _construct(params: Any) -> Any:
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        return _native.Server(params)
    except RuntimeError as error:
        raise RuntimeFault(f"{params.model.path}: llama.cpp cannot load it: {error}") from error
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
