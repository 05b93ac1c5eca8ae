"""What ``/generate`` answers: SGLang's objects, made from a generation."""

from __future__ import annotations

from typing import Any

from .forward import Scores
from .generation import Generation

Entry = list[Any]
"""SGLang's ``[logprob, token id, text or null]``."""


def generate_answer(generation: Generation) -> dict[str, Any]:
    """The answer of ``/generate`` as it stands: cumulative, final once the generation is complete."""
    answer: dict[str, Any] = {
        "text": generation.text,
        "output_ids": list(generation.ids),
        "meta_info": meta_info(generation),
    }
    if generation.request.echo_prompt_ids:
        answer["prompt_token_ids"] = list(generation.request.prompt)
    return answer


def meta_info(generation: Generation) -> dict[str, Any]:
    """Counts, finish reason (null while it runs), and the log-probabilities that were asked for."""
    request = generation.request
    finish = generation.finish if generation.complete else None
    info: dict[str, Any] = {
        "id": generation.rid,
        "finish_reason": None if finish is None else finish.to_json(),
        "prompt_tokens": len(request.prompt),
        "completion_tokens": len(generation.ids),
        "cached_tokens": generation.cached_tokens,
        "weight_version": generation.weight_version,
    }
    if generation.finished_s is not None:
        info["e2e_latency"] = generation.finished_s - generation.started_s
    if request.return_logprob:
        info.update(_logprobs(generation))
    return info


def _logprobs(generation: Generation) -> dict[str, Any]:
    request = generation.request
    reported = request.prompt[request.logprob_start :]
    scores = generation.prompt_scores
    computed = [] if scores is None else scores.logprobs.tolist()
    # Aborted before it was scored: the first entry alone, which never has a value.
    values = [None, *computed]
    info: dict[str, Any] = {
        "input_token_logprobs": [
            _entry(generation, value, number) for value, number in zip(values, reported, strict=False)
        ],
        "output_token_logprobs": [_entry(generation, token.logprob, token.id) for token in generation.tokens],
    }
    if request.top_logprobs:
        info["input_top_logprobs"] = [None, *_top(generation, scores)]
        info["output_top_logprobs"] = [
            [_entry(generation, logprob, number) for number, logprob in token.top]
            for token in generation.tokens
        ]
    if request.logprobs_of:
        info["input_token_ids_logprobs"] = [None, *_of(generation, scores)]
        info["output_token_ids_logprobs"] = _of(generation, generation.output_scores)
    return info


def _top(generation: Generation, scores: Scores | None) -> list[list[Entry]]:
    if scores is None:
        return []
    return [
        [_entry(generation, value, number) for number, value in zip(ids, values, strict=True)]
        for ids, values in zip(scores.top_ids.tolist(), scores.top_logprobs.tolist(), strict=True)
    ]


def _of(generation: Generation, scores: Scores | None) -> list[list[Entry]]:
    if scores is None:
        return []
    wanted = generation.request.logprobs_of
    return [
        [_entry(generation, value, number) for number, value in zip(wanted, values, strict=True)]
        for values in scores.of_logprobs.tolist()
    ]


def _entry(generation: Generation, value: float | None, number: int) -> Entry:
    text = generation.token_text(number) if generation.request.text_in_logprobs else None
    return [value, number, text]
