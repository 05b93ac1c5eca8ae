"""Which prompts a batch takes, in which order, and whether a resumed run would take the same.

Pure. A batch's prompts follow from its number alone: there is no cursor to store, so a run that is resumed
with the same file and settings goes on exactly where it was.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from attrs import asdict, evolve, frozen

from rolecall.batches.sample import Prompt
from rolecall.ids import BatchId


def pick_prompts(
    prompts: Sequence[Prompt], batch: BatchId, count: int, shuffle_seed: int | None = None
) -> tuple[Prompt, ...]:
    """Return the prompts of batch ``batch``: the next ``count`` of the file, from its start again
    after its end.

    With ``shuffle_seed`` every turn through the file (epoch) has an order of its own, which follows from
    seed, epoch and number of prompts. A prompt that comes up again gets an id of its own
    (``arith-001#1``), so groups are distinct within a batch and over the whole job.
    """
    first = batch * count
    return tuple(_pick(prompts, index, shuffle_seed) for index in range(first, first + count))


def _pick(prompts: Sequence[Prompt], index: int, seed: int | None) -> Prompt:
    epoch, place = divmod(index, len(prompts))
    prompt = prompts[place if seed is None else shuffled(seed, epoch, len(prompts))[place]]
    return prompt if epoch == 0 else evolve(prompt, prompt_id=f"{prompt.prompt_id}#{epoch}")


@lru_cache(maxsize=4)
def shuffled(seed: int, epoch: int, count: int) -> tuple[int, ...]:
    """Return the places from 0 to ``count`` in the order of one epoch.

    Sorted by the digits of a hash of seed and epoch: the same on every machine and in every version of Python
    and its libraries, which no random generator promises of its shuffling.
    """
    from hashlib import shake_256  # OpenSSL: of no use to a process that only plans

    digits = shake_256(f"{seed}/{epoch}".encode()).digest(8 * count)
    keys = struct.unpack(f"<{count}Q", digits)
    return tuple(sorted(range(count), key=keys.__getitem__))


@frozen(kw_only=True)
class PromptSource:
    """A job's prompts, by the number of the batch.

    per_batch: prompts in a batch.
    shuffle_seed: None takes them in the file's order.
    """

    prompts: tuple[Prompt, ...]
    per_batch: int
    shuffle_seed: int | None = None

    def of_batch(self, batch: BatchId) -> tuple[Prompt, ...]:
        """Return the prompts of a batch, the same however often and wherever it is asked."""
        return pick_prompts(self.prompts, batch, self.per_batch, self.shuffle_seed)

    def resume_point(self) -> Mapping[str, Any]:
        """Return what decides which prompts a batch takes. A source with an equal one takes the same."""
        import json
        from hashlib import sha256

        digest = sha256()
        for prompt in self.prompts:
            digest.update(json.dumps(asdict(prompt), sort_keys=True, default=str).encode())
        return {
            "prompts": len(self.prompts),
            "digest": digest.hexdigest(),
            "prompts_per_batch": self.per_batch,
            "shuffle_seed": self.shuffle_seed,
        }
