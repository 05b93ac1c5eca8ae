"""The example's losses against values worked out by hand."""

from __future__ import annotations

import math

import pytest

pytestmark = pytest.mark.transferqueue
torch = pytest.importorskip("torch", reason="comes with rolecall[transferqueue]")

from losses import group_advantages, policy_loss, reverse_kl, sampled_kl  # noqa: E402


def test_advantages_are_standard_deviations_within_the_own_group() -> None:
    rewards = torch.tensor([1.0, 10.0, 3.0, 10.0, 5.0, 40.0])
    got = group_advantages(rewards, ["a", "b", "a", "b", "a", "b"], epsilon=0.0)
    # a: mean 3, deviation sqrt(8/3). b: mean 20, deviation sqrt(200).
    expected = [-2 / math.sqrt(8 / 3), -10 / math.sqrt(200), 0, -10 / math.sqrt(200), 2 / math.sqrt(8 / 3)]
    assert got.tolist() == pytest.approx([*expected, 20 / math.sqrt(200)])


def test_a_group_whose_samples_are_worth_the_same_says_nothing() -> None:
    assert group_advantages(torch.tensor([0.7, 0.7, 0.7]), ["a"] * 3).abs().max() < 1e-3
    assert group_advantages(torch.tensor([0.7]), ["a"]).tolist() == [0.0]


def test_the_policy_loss_is_clipped_on_the_side_where_the_step_was_already_taken() -> None:
    old = torch.zeros(4)
    new = torch.log(torch.tensor([1.5, 1.5, 0.5, 0.5]))
    got = policy_loss(new, old, torch.tensor([2.0, -2.0, 2.0, -2.0]), clip=0.2)
    # min(1.5*2, 1.2*2), min(1.5*-2, 1.2*-2), min(0.5*2, 0.8*2), min(0.5*-2, 0.8*-2), each times -1
    assert got.tolist() == pytest.approx([-2.4, 3.0, -1.0, 1.6])


def test_the_policy_gradient_at_the_sampling_weights_is_minus_the_advantage() -> None:
    log_probs = torch.tensor([-0.3, -2.0], requires_grad=True)
    policy_loss(log_probs, log_probs.detach(), torch.tensor([1.5, -0.5])).sum().backward()
    assert log_probs.grad.tolist() == pytest.approx([-1.5, 0.5])


def test_reverse_kl_counts_what_the_teacher_did_not_name_as_one_token() -> None:
    student, teacher = torch.tensor([[0.5, 0.2]]), torch.tensor([[0.25, 0.25]])
    expected = 0.5 * math.log(2) + 0.2 * math.log(0.8) + 0.3 * math.log(0.6)
    assert reverse_kl(student.log(), teacher.log()).tolist() == pytest.approx([expected])
    assert reverse_kl(teacher.log(), teacher.log()).tolist() == pytest.approx([0.0], abs=1e-7)


def test_reverse_kl_never_exceeds_that_over_the_whole_vocabulary() -> None:
    torch.manual_seed(0)
    student, teacher = (torch.log_softmax(2 * torch.randn(50, 30), -1) for _ in range(2))
    whole = (student.exp() * (student - teacher)).sum(-1)
    best, ids = teacher.topk(8, dim=-1)
    part = reverse_kl(student.gather(1, ids), best)
    assert (part <= whole + 1e-5).all()
    assert (part >= -1e-6).all()
    assert torch.allclose(reverse_kl(student, teacher), whole, atol=1e-4)


def test_the_gradient_of_the_reverse_kl_leads_to_the_teacher() -> None:
    logits = torch.zeros(1, 3, requires_grad=True)
    teacher = torch.tensor([[0.7, 0.2, 0.1]]).log()
    optimiser = torch.optim.SGD([logits], lr=1.0)
    for _ in range(200):
        optimiser.zero_grad()
        reverse_kl(torch.log_softmax(logits, -1)[:, :2], teacher[:, :2]).sum().backward()
        optimiser.step()
    assert torch.softmax(logits, -1)[0].tolist() == pytest.approx([0.7, 0.2, 0.1], abs=1e-3)


def test_the_sampled_estimate_is_the_kl_in_expectation() -> None:
    p, q = torch.tensor([0.6, 0.3, 0.1]), torch.tensor([0.2, 0.5, 0.3])
    estimates = sampled_kl(p.log(), q.log())
    assert (estimates >= 0).all()
    assert (p * estimates).sum().item() == pytest.approx((p * (p / q).log()).sum().item())
