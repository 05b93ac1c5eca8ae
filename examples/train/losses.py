"""What the optimiser minimises: GRPO on the rewards, plus on-policy distillation from the teacher.

Everything is flat: N response tokens of S samples, one after the other. Plain functions of tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def group_advantages(rewards: Tensor, groups: Sequence[str], epsilon: float = 1e-4) -> Tensor:
    """Return how much better than its group each sample is, in standard deviations: [S] from rewards [S].

    A group is the samples of one prompt. One whose samples are all worth the same says nothing: zeros.
    """
    advantages = torch.zeros_like(rewards)
    for group in dict.fromkeys(groups):
        members = torch.tensor([name == group for name in groups], device=rewards.device)
        own = rewards[members]
        advantages[members] = (own - own.mean()) / (own.std(correction=0) + epsilon)
    return advantages


def policy_loss(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, clip: float = 0.2) -> Tensor:
    """Return GRPO's clipped loss of each token, [N].

    ``old_log_probs`` are the engine's, under the weights that sampled the token; ``advantages`` are each
    token's sample's.
    """
    ratio = torch.exp(log_probs - old_log_probs)
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)


def reverse_kl(log_probs: Tensor, teacher_log_probs: Tensor) -> Tensor:
    """Return KL(student ‖ teacher) at each token, [N], over the teacher's K most probable tokens.

    Both arguments are [N, K]: the student's and the teacher's log-probabilities of the same tokens. All other
    tokens together are one more outcome, so this never exceeds the KL over the whole vocabulary.
    """
    student, teacher = _with_rest(log_probs), _with_rest(teacher_log_probs)
    return (student.exp() * (student - teacher)).sum(-1)


def _with_rest(log_probs: Tensor, least: float = 1e-6) -> Tensor:
    """Append the log-probability of everything else, at least ``log(least)``."""
    rest = (1 - log_probs.exp().sum(-1, keepdim=True)).clamp(min=least)
    return torch.cat([log_probs, rest.log()], dim=-1)


def sampled_kl(log_probs: Tensor, other_log_probs: Tensor) -> Tensor:
    """Estimate KL(sampler ‖ other) at each token that the first one has sampled, [N], never below 0.

    Schulman's third estimator: d + exp(-d) - 1 with d = log p - log q of the sampled token.
    """
    difference = log_probs - other_log_probs
    return difference + torch.exp(-difference) - 1
