"""``blend``: what cheap rules see and what a judge thinks, as one weighted mean.

The rules need no model: whether the response has the wanted format, and whether it gives the reference
answer. The judge is asked with a text to be continued and has to begin with a known word. A judge that
can't be asked, or says something else, is an error for the reward's ``on_error``; it never counts as 0,
and neither do the rules alone stand for the blend.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from attrs import Attribute, field, frozen

from rolecall.api import RewardAdapter, Sample, ScoringClient, ScoringError, hookimpl

from .checks import is_regular_expression, is_weight

TEMPLATE = """\
Is the answer right? Say yes or no.

Question: What is the capital of England?
Answer: It is a kind of cake.
Right: no

Question: What colour is blood?
Answer: The colour of blood is red.
Right: yes

Question: {prompt}
Answer: {response}
Right:"""

_PLACEHOLDER = re.compile(r"\{(prompt|response)\}")
_FIRST_WORD = re.compile(r"\W*(\w+)")


def _has_placeholders(_: Any, attribute: Attribute[str], value: str) -> None:
    if "{response}" not in value:
        raise ValueError(f"{attribute.name} must contain {{response}}, found {value!r:.80}")


def _are_verdicts(_: Any, attribute: Attribute[Mapping[str, float]], value: Mapping[str, float]) -> None:
    if not value:
        raise ValueError(f"{attribute.name} is empty: the judge could say nothing that counts")
    for word, worth in value.items():
        if not math.isfinite(worth):
            raise ValueError(f"{attribute.name}.{word} is {worth}, but a worth must be a finite number")


def _short_and_greedy() -> dict[str, Any]:
    return {"temperature": 0.0, "max_new_tokens": 4}


def _yes_or_no() -> dict[str, float]:
    return {"yes": 1.0, "no": 0.0}


@frozen(kw_only=True)
class BlendOptions:
    """``[rewards.<name>.options]`` of ``blend``.

    pattern: regular expression (Python's ``re``) of the format rule, searched anywhere in the response.
    format_weight, answer_weight, judge_weight: how much each part counts; the reward is their weighted
        mean. A part of weight 0 is not looked at: the answer rule then needs no reference answers.
    template: what the judge continues; ``{prompt}`` and ``{response}`` are replaced.
    verdicts: the judge's first word → what it is worth; case does not count.
    sampling: the judge's sampling parameters.
    model: which model of the judge role, if it has several.
    """

    pattern: str = field(default=r"\S", validator=is_regular_expression)
    format_weight: float = field(default=0.2, validator=is_weight)
    answer_weight: float = field(default=0.4, validator=is_weight)
    judge_weight: float = field(default=0.4, validator=is_weight)
    template: str = field(default=TEMPLATE, validator=_has_placeholders)
    verdicts: Mapping[str, float] = field(factory=_yes_or_no, validator=_are_verdicts)
    sampling: Mapping[str, Any] = field(factory=_short_and_greedy)
    model: str | None = None

    def __attrs_post_init__(self) -> None:
        if not self.judge_weight:
            raise ValueError("judge_weight is 0, so nobody would be asked; use a rule such as format_reward")


class Blend:
    """Rules first; then one request to the judge. A group's requests share an affinity key, so the
    beginning that their texts have in common is computed once."""

    name: ClassVar[str] = "blend"
    api_version: ClassVar[int] = 1
    options: ClassVar[type[BlendOptions]] = BlendOptions
    supports_deferred: ClassVar[bool] = True
    role: ClassVar[str | None] = "genrm"
    reads: ClassVar[frozenset[str]] = frozenset({"response", "prompt.text", "prompt.answer"})

    def __init__(self, options: BlendOptions) -> None:
        self._options = options
        self._pattern = re.compile(options.pattern)
        self._verdicts = {word.casefold(): worth for word, worth in options.verdicts.items()}

    async def score(self, sample: Sample, client: ScoringClient | None) -> float:
        """Return the weighted mean of the parts.

        Raises:
            RequestError: the judge could not be asked.
            ScoringError: the judge gave no verdict, or the prompt has no reference answer.
        """
        assert client is not None, "an adapter that names a role gets a client"
        options = self._options
        parts = [(options.format_weight, float(self._pattern.search(sample.response) is not None))]
        if options.answer_weight:
            parts.append((options.answer_weight, float(gives_answer(sample))))
        parts.append((options.judge_weight, await self._verdict(sample, client)))
        return sum(weight * worth for weight, worth in parts) / sum(weight for weight, _ in parts)

    async def _verdict(self, sample: Sample, client: ScoringClient) -> float:
        answer = await client.generate(
            {"text": self.question(sample), "sampling_params": dict(self._options.sampling)},
            model=self._options.model,
            affinity_key=sample.group_id,
        )
        text = answer.get("text")
        first = _FIRST_WORD.match(text) if isinstance(text, str) else None
        if first is None or first[1].casefold() not in self._verdicts:
            known = ", ".join(self._options.verdicts)
            raise ScoringError(f"the judge's answer begins with none of {known}: {text!r:.80}")
        return self._verdicts[first[1].casefold()]

    def question(self, sample: Sample) -> str:
        """Return what the judge continues. The response becomes one line: a line of its own that says
        ``Right: yes`` would read as the judge's."""
        values = {"prompt": sample.prompt.text, "response": " ".join(sample.response.split())}
        return _PLACEHOLDER.sub(lambda match: values[match[1]], self._options.template)


def gives_answer(sample: Sample) -> bool:
    """Return whether the reference answer stands in the response as whole words.

    Raises:
        ScoringError: there is no reference answer.
    """
    words = re.findall(r"\w+", sample.prompt.answer or "")
    if not words:
        raise ScoringError(f'prompt "{sample.prompt.prompt_id}" has no reference answer')
    said = re.findall(r"\w+", sample.response)
    return f" {' '.join(words)} ".casefold() in f" {' '.join(said)} ".casefold()


@hookimpl
def rolecall_reward_adapter() -> type[RewardAdapter]:
    """Return the adapter's class."""
    return Blend
