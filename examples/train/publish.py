"""New weights to the rollout role, and the proof that it answers with them.

:class:`Publisher` writes a checkpoint under a new version and path and hands it to the job; a replica that
sleeps loads it when it wakes. :class:`Witness` then asks the rollout's gateway for a fixed prompt's
log-probabilities, over plain HTTP as anybody would, and compares them with the optimiser's own forward pass.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import torch
from torch import Tensor

from checkpoints import Checkpoint
from model import Decoder
from rolecall.api import FromDisk
from rolecall.ids import BatchId, OperationId, RoleName
from rolecall.job.handle import JobHandle

ROLE = "rollout"
FIRST_VERSION = "0"
"""What rolecall calls weights as the job's source has them."""

TOLERANCE = {torch.float16: 0.05, torch.bfloat16: 0.25}
"""How far a log-probability may be from the optimiser's, beyond its own size times the precision's ``eps``.

Engines compute in the precision of their files: bfloat16 knows a logit of 100 to 0.5.
"""


class WrongWeights(Exception):
    """The rollout does not answer with the weights that it was given, or was about to be given wrong ones."""


class Publisher:
    """Writes and publishes one version after the other; keeps the files of the last two."""

    def __init__(self, job: JobHandle, checkpoint: Checkpoint, folder: Path) -> None:
        self._job = job
        self._checkpoint = checkpoint
        self._folder = folder
        self._published: list[tuple[int, Path]] = []
        self.version = FIRST_VERSION

    def write(self, model: Decoder, step: int) -> Path:
        """Write the weights after ``step`` optimiser steps to a path of their own.

        Raises:
            WrongWeights: ``step`` is not newer than what is published.
        """
        newest = self._published[-1][0] if self._published else 0
        if step <= newest:
            raise WrongWeights(
                f"weights of step {step} can't be published: step {newest} is; a version is never used again"
            )
        path = self._folder / f"step-{step:04}{self._checkpoint.path.suffix}"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._checkpoint.write(model, path)
        return path

    async def publish(self, path: Path, step: int) -> None:
        """Give the rollout the weights at ``path``; returns when no replica serves older ones any more."""
        await self._job.update_weights(ROLE, FromDisk(path=path), f"step-{step}")
        self.version = f"step-{step}"
        self._published.append((step, path))
        for _, old in self._published[:-2]:
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        del self._published[:-2]


@dataclass(frozen=True)
class Answer:
    """What an engine says of a text and its own greedy continuation.

    ids [T]; log_probs [T - 1] of all but the first; ``prompt`` of the T ids are the text's.
    """

    ids: Tensor
    log_probs: Tensor
    prompt: int
    version: str


async def ask_gateway(url: str, text: str, new_tokens: int = 8) -> Answer:
    """Ask ``{url}/generate`` for the log-probabilities of a text and of a greedy continuation."""
    payload = {
        "text": text,
        "sampling_params": {"temperature": 0.0, "max_new_tokens": new_tokens, "ignore_eos": True},
        "return_logprob": True,
        "logprob_start_len": 0,
    }
    async with httpx.AsyncClient(timeout=300) as client:
        answer = await client.post(f"{url}/generate", json=payload)
    if answer.status_code != 200:
        raise WrongWeights(f"{url}/generate answered {answer.status_code}: {answer.text:.300}")
    meta = answer.json()["meta_info"]
    given, made = meta["input_token_logprobs"], meta["output_token_logprobs"]
    entries = [*given, *made]
    return Answer(
        ids=torch.tensor([entry[1] for entry in entries]),
        log_probs=torch.tensor([entry[0] for entry in entries[1:]]),
        prompt=len(given),
        version=meta["weight_version"],
    )


@dataclass(frozen=True)
class Checked:
    """How the gateway's log-probabilities agree with the optimiser's, for the plots.

    off: largest difference to the optimiser's own. moved: largest difference to the version before, on the
    prompt. gateway, computed: their sums over the prompt.
    """

    off: float
    moved: float | None
    gateway: float
    computed: float


class Witness:
    """Asks the same question after each publication, and remembers the last answer."""

    def __init__(self, job: JobHandle, checkpoint: Checkpoint, text: str) -> None:
        self._url = f"{job.gateway_url}/{ROLE}"
        self._precision = checkpoint.precision
        self._text = text
        self._before: tuple[Answer, Tensor] | None = None

    async def check(self, model: Decoder, version: str) -> Checked:
        """Compare the gateway's log-probabilities with the model's. The rollout has to be awake.

        Raises:
            WrongWeights: it answers with another version, with other log-probabilities than the model has,
                with the same as before, or with some that fit the model before better.
        """
        answer = await ask_gateway(self._url, self._text)
        if answer.version != version:
            raise WrongWeights(
                f"the rollout answers with weights {answer.version!r}; published are {version!r}"
            )
        computed = own_log_probs(model, answer.ids)
        off = (answer.log_probs - computed).abs()
        allowed = TOLERANCE[self._precision] + torch.finfo(self._precision).eps * computed.abs()
        if not (off <= allowed).all():
            worst = (off - allowed).argmax()
            raise WrongWeights(
                f"the rollout's log-probabilities are up to {off[worst]:.3g} away from the optimiser's "
                f"{computed[worst]:.4g} at version {version}; {allowed[worst]:.3g} is allowed"
            )
        prompt = slice(answer.prompt - 1)
        moved = (
            None
            if self._before is None
            else self._compare(answer.log_probs[prompt], computed[prompt], version)
        )
        self._before = answer, computed[prompt]
        return Checked(
            off=off.max().item(),
            moved=moved,
            gateway=answer.log_probs[prompt].sum().item(),
            computed=computed[prompt].sum().item(),
        )

    def _compare(self, now: Tensor, computed: Tensor, version: str) -> float:
        assert self._before is not None
        before, computed_before = self._before
        moved = (now - before.log_probs[: len(now)]).abs().max().item()
        if before.version != version and moved == 0:
            raise WrongWeights(f"the rollout's log-probabilities at {version} are those of {before.version}")
        new, old = (now - computed).abs().mean().item(), (now - computed_before).abs().mean().item()
        if before.version != version and not new < old:
            raise WrongWeights(
                f"the rollout's log-probabilities at {version} are {new:.3g} away from the optimiser's, but "
                f"only {old:.3g} from those it had at {before.version}"
            )
        return moved


@torch.no_grad()
def own_log_probs(model: Decoder, ids: Tensor) -> Tensor:
    """Return the model's log-probabilities [T - 1] of ids [T], without the first."""
    places = torch.arange(1, len(ids))
    log_probs = model.log_probs(ids[None], torch.zeros_like(places), places)
    return log_probs.gather(1, ids[1:, None]).squeeze(1)


@asynccontextmanager
async def awake_for(job: JobHandle, batch: BatchId) -> AsyncGenerator[None]:
    """Wake the rollout for a batch ahead of its own generation, which finds it awake.

    If the block fails, so does the batch, and the rollout is put to sleep.
    """
    mark = f"witness/batch-{batch}/{secrets.token_hex(4)}"
    role = RoleName(ROLE)
    await job.coordinator.begin_batch(batch)
    await job.coordinator.activate(batch, role, OperationId(f"{mark}/activate"))
    try:
        yield
    except BaseException as error:
        await job.coordinator.fail_batch(batch, f"witness: {error}")
        await job.coordinator.deactivate(batch, role, OperationId(f"{mark}/deactivate"))
        raise
