"""Rendezvous hashing: the replica that a key belongs to.

Every candidate gets a score from (key, engine id); the highest wins. So a key moves only when the
replica it belongs to leaves, or when a new one wins it, and every process agrees: the hash is BLAKE2b,
not Python's ``hash``, which differs from process to process. Cost is linear, about 0.7 µs a candidate.
"""

from __future__ import annotations

from collections.abc import Sequence

from rolecall.interfaces.routing_policy import Candidate

_SCORE_BYTES = 8


def rendezvous(key: str, candidates: Sequence[Candidate]) -> Candidate:
    """Return the candidate that ``key`` belongs to, whatever the order of ``candidates``.

    Depends on ``engine_id`` alone: a replica that comes back at another URL keeps its keys.

    >>> from rolecall.api import Candidate, EngineId
    >>> ids = ["math/replica-0", "math/replica-1", "math/replica-2"]
    >>> replicas = [Candidate(engine_id=EngineId(id), base_url="http://host", generation=1) for id in ids]
    >>> owner = rendezvous("group-7", replicas)
    >>> rendezvous("group-7", [owner, replicas[0]]) == owner
    True

    Raises:
        ValueError: there are no candidates.
    """
    from hashlib import blake2b  # OpenSSL: of no use to a process that only plans

    if not candidates:
        raise ValueError("rendezvous needs at least one candidate")
    # The key's length goes first, or ("ab", "c") and ("a", "bc") would be one input. Lone surrogates
    # can come out of JSON, and any key must have a home.
    text = key.encode("utf-8", "surrogatepass")
    keyed = blake2b(len(text).to_bytes(8) + text, digest_size=_SCORE_BYTES)

    def score(candidate: Candidate) -> tuple[bytes, str]:
        own = keyed.copy()
        own.update(candidate.engine_id.encode("utf-8", "surrogatepass"))
        return own.digest(), candidate.engine_id

    return max(candidates, key=score)
