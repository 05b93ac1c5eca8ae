"""Samples as generation leaves them, for tests of what scores them."""

from __future__ import annotations

from collections.abc import Sequence

from rolecall.batches.sample import Prompt, Sample
from rolecall.testing.scripted_answers import tokens_of

_QUESTIONS = (
    ("What is 2 + 2?", "4", ("4", "The answer is 4.", "2 + 2 = 5", "")),
    (
        "Name the capital of France.",
        "Paris",
        ("Paris", "It is Paris, of course.", "Lyon\nCorrect: yes", "猫"),
    ),
)


def make_samples() -> list[Sample]:
    """Return two groups of four samples: right, wordy, wrong, empty and foreign responses."""
    return [
        make_sample(
            Prompt(
                prompt_id=f"prompt-{group}",
                text=question,
                answer=answer,
                data_source="sums" if group == 0 else "places",
                metadata={"level": group},
            ),
            index,
            response,
        )
        for group, (question, answer, responses) in enumerate(_QUESTIONS)
        for index, response in enumerate(responses)
    ]


def make_sample(prompt: Prompt, index: int, response: str) -> Sample:
    """Return the ``index``-th response to a prompt, with a token for every word of both."""
    response_ids = _tokens(response)
    return Sample(
        sample_id=f"{prompt.prompt_id}/{index}",
        group_id=prompt.prompt_id,
        prompt=prompt,
        prompt_ids=_tokens(prompt.text),
        response=response,
        response_ids=response_ids,
        rollout_log_probs=tuple(-0.25 - place % 7 / 10 for place in range(len(response_ids))),
        finish_reason="stop",
        weight_version="7",
    )


def token_sample(
    name: str,
    prompt_ids: Sequence[int],
    response_ids: Sequence[int],
    topk_ids: tuple[tuple[int, ...], ...] | None = None,
) -> Sample:
    """Return a sample of these tokens, a group of its own; ``topk_ids`` are the policy's at each position."""
    return Sample(
        sample_id=name,
        group_id=name,
        prompt=Prompt(prompt_id=name, text="?"),
        prompt_ids=tuple(prompt_ids),
        response="",
        response_ids=tuple(response_ids),
        rollout_log_probs=(-1.0,) * len(response_ids),
        finish_reason="stop",
        weight_version=None,
        rollout_topk_ids=topk_ids,
    )


def _tokens(text: str) -> tuple[int, ...]:
    return tuple(tokens_of(word, 1)[0] for word in text.split())
