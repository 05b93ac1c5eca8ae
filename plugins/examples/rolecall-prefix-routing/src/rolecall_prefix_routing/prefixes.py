"""Prefixes of prompts, and who has served them: bounded memory, no clock.

A prompt is cut into chunks. The key of a prefix is a hash over its chunks, so two prompts share as many keys
as they share chunks from their start. What is left at the end is a chunk too, so equal prompts share all.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import islice

from rolecall.api import Candidate, EngineId

CHUNK_TOKENS = 64
CHUNK_CHARACTERS = 256
MOST_CHUNKS = 128
"""Prompts that are equal up to here count as equal: 8,192 tokens, or 32,768 characters."""

MOST_PREFIXES = 32_768
"""Remembered at most, the last used ones: about 15 MB, the chunks of two million tokens."""
MOST_SERVERS = 8
"""Remembered for each prefix, the last ones."""

_KEY_BYTES = 16

_Incarnation = tuple[EngineId, int]


def prefix_keys(prompt: str | Sequence[int] | None) -> list[bytes]:
    """Return a key for each prefix of whole chunks, shortest first; none for an empty prompt."""
    hasher = blake2b(digest_size=_KEY_BYTES)
    keys: list[bytes] = []
    for chunk in islice(_chunks(prompt), MOST_CHUNKS):
        hasher.update(chunk)
        keys.append(hasher.digest())
    return keys


def _chunks(prompt: str | Sequence[int] | None) -> Iterator[bytes]:
    if prompt is None:
        return
    # Any JSON may get here: lone surrogates, integers of any size.
    if isinstance(prompt, str):
        for start in range(0, len(prompt), CHUNK_CHARACTERS):
            yield prompt[start : start + CHUNK_CHARACTERS].encode("utf-8", "surrogatepass")
    else:
        for start in range(0, len(prompt), CHUNK_TOKENS):
            yield (",".join(map(str, prompt[start : start + CHUNK_TOKENS])) + ";").encode()


class ServedPrefixes:
    """Which replicas have served which prefixes, as far as remembered.

    A replica that was started again has an empty cache: it counts as another one.
    """

    def __init__(self) -> None:
        self._servers: OrderedDict[bytes, dict[_Incarnation, None]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._servers)

    def longest(self, prefixes: Sequence[bytes], candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        """Return the candidates that served the longest of the prefixes that any of them has; maybe none."""
        for prefix in reversed(prefixes):
            servers = self._servers.get(prefix)
            if servers is not None:
                found = [candidate for candidate in candidates if _incarnation(candidate) in servers]
                if found:
                    return found
        return ()

    def add(self, prefixes: Sequence[bytes], candidate: Candidate) -> None:
        """Remember that a candidate serves these prefixes of one prompt, shortest first."""
        server = _incarnation(candidate)
        # The shortest last: a longer prefix is of no use to whoever has forgotten the shorter one's.
        for prefix in reversed(prefixes):
            servers = self._servers.setdefault(prefix, {})
            servers.pop(server, None)
            servers[server] = None
            if len(servers) > MOST_SERVERS:
                del servers[next(iter(servers))]
            self._servers.move_to_end(prefix)
        while len(self._servers) > MOST_PREFIXES:
            self._servers.popitem(last=False)


def _incarnation(candidate: Candidate) -> _Incarnation:
    return candidate.engine_id, candidate.generation
