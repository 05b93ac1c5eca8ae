"""The optimiser: AdamW on float32 masters, and the device's memory only while it is its turn.

The model that is differentiated has the values that are published: the masters rounded to the checkpoints'
precision. With the masters in its place the samples would come from another policy than the one that is
trained: a step of 2e-5 is less than half the distance of two float16 numbers near 0.1, and lost or doubled.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from checkpoints import Checkpoint
from losses import policy_loss, reverse_kl, sampled_kl
from rows import Tokens, advantages_of, to_tokens

LARGEST_REST = 64 * 2**20
"""Bytes of a GPU that PyTorch may keep between turns."""


@dataclass(frozen=True)
class Recipe:
    """What is optimised, and how.

    reward_weights: how much each reward counts. distillation: how much the reverse KL to the teacher counts
    against the policy loss. micro_batch: samples of one forward pass.
    """

    reward_weights: Mapping[str, float]
    distillation: float
    learning_rate: float
    clip: float = 0.2
    largest_gradient: float = 1.0
    micro_batch: int = 16


class Learner:
    """Owns the policy's weights, as published, their masters and the optimiser's state.

    Between turns all of it is in the CPU's memory. rest: bytes of a GPU that PyTorch kept after the last one.
    """

    def __init__(self, checkpoint: Checkpoint, recipe: Recipe, device: torch.device) -> None:
        self.model = checkpoint.load()
        self.recipe = recipe
        self.device = device
        self.rest = 0
        self._precision_of = checkpoint.precision_of
        self._masters = [parameter.detach().clone() for parameter in self.model.parameters()]
        self._optimiser = torch.optim.AdamW(
            self._masters, lr=recipe.learning_rate, betas=(0.9, 0.95), weight_decay=0.0
        )

    @contextmanager
    def on_device(self) -> Generator[None]:
        """Have weights and optimiser state on the device for the length of a block, and not after it.

        Raises:
            RuntimeError: more than ``LARGEST_REST`` of PyTorch's is still in the device's memory.
        """
        self._move(self.device)
        try:
            yield
        finally:
            self.model.zero_grad(set_to_none=True)
            self._optimiser.zero_grad(set_to_none=True)
            self._move(torch.device("cpu"))
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            # cuBLAS's work space is cut from large blocks, which then can't be given back. PyTorch has no
            # public name for this.
            torch._C._cuda_clearCublasWorkspaces()  # pyright: ignore[reportPrivateUsage]
            torch.cuda.empty_cache()
            self.rest = torch.cuda.memory_reserved()
            if self.rest > LARGEST_REST:
                raise RuntimeError(
                    f"the trainer's turn is over, but PyTorch still holds {self.rest} bytes of the GPU; "
                    f"{LARGEST_REST} are allowed"
                )

    def _move(self, device: torch.device) -> None:
        self.model.to(device)
        for master in self._masters:
            master.data = master.data.to(device)
        for state in self._optimiser.state.values():
            for name, value in state.items():
                if torch.is_tensor(value) and value.ndim:  # the step counter is a number and stays
                    state[name] = value.to(device)

    def evaluate(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Return the figures of :meth:`step` without changing anything."""
        with torch.no_grad():
            return self._pass(rows, backward=False)

    def step(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Take one optimiser step on a batch; returns its figures, computed before the step."""
        figures = self._pass(rows, backward=True)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.largest_gradient)
        for parameter, master in zip(self.model.parameters(), self._masters, strict=True):
            master.grad = parameter.grad
        self._optimiser.step()
        with torch.no_grad():
            for parameter, master in zip(self.model.parameters(), self._masters, strict=True):
                parameter.copy_(master.to(self._precision_of(master)))
        return figures | {"gradient_norm": norm.item()}

    def _pass(self, rows: Sequence[Mapping[str, Any]], *, backward: bool) -> dict[str, float]:
        advantages = advantages_of(rows, self.recipe.reward_weights)
        count = sum(len(row["response_ids"]) for row in rows)
        sums: dict[str, float] = {}
        for low in range(0, len(rows), self.recipe.micro_batch):
            part = slice(low, low + self.recipe.micro_batch)
            tokens = to_tokens(rows[part], advantages[part], self.device)
            terms = self._terms(tokens)
            loss = terms["loss"].sum() / count
            if not torch.isfinite(loss):
                raise RuntimeError(f"the loss is {loss.item()}; no step is taken")
            if backward:
                loss.backward()
            for name, values in terms.items():
                sums[name] = sums.get(name, 0.0) + values.sum().item()
        return {name: total / count for name, total in sums.items()}

    def _terms(self, tokens: Tokens) -> dict[str, torch.Tensor]:
        """Return the loss of each token and what it is made of, [N] each."""
        everything = self.model.log_probs(tokens.ids, tokens.rows, tokens.places)
        log_probs = everything.gather(1, tokens.targets[:, None]).squeeze(1)
        policy = policy_loss(log_probs, tokens.rollout_log_probs, tokens.advantages, self.recipe.clip)
        teacher = reverse_kl(everything.gather(1, tokens.teacher_ids), tokens.teacher_topk_log_probs)
        return {
            "loss": policy + self.recipe.distillation * teacher,
            "policy_loss": policy,
            "teacher_kl": teacher,
            "teacher_kl_sampled": sampled_kl(log_probs, tokens.teacher_log_probs),
            "rollout_kl": sampled_kl(tokens.rollout_log_probs, log_probs),
        }
