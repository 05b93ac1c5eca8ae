"""``genrm_judge``: asks the judge role for a verdict and turns it into a reward.

A verdict is a known word at the start of the judge's answer or, without words, the first number in
it. An answer that is neither, or a number out of range, is an error, and the reward's ``on_error``
says what that means: it is never a reward of 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from attrs import field, frozen, validators

from rolecall.api import ROLECALL_API, RewardAdapter, Sample, ScoringClient, UpstreamError, hookimpl

_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")
_FIRST_WORD = re.compile(r"\W*(\w+)")

_PLACEHOLDERS = re.compile(r"\{(prompt|answer|response)\}")

TEMPLATE = """\
Say for each answer whether it agrees with the reference: yes or no.

Question: What is 1 + 1?
Reference: 2
Answer: 1 + 1 = 2
Correct: yes

Question: What is the capital of England?
Reference: London
Answer: It is a kind of cake.
Correct: no

Question: What is 20 times 2?
Reference: 40
Answer: 20 times 2 is 12.
Correct: no

Question: What colour is blood?
Reference: Red
Answer: The colour of blood is red.
Correct: yes

Question: {prompt}
Reference: {answer}
Answer: {response}
Correct:"""

Ask = Literal["completion", "chat"]


def _has_response(_: object, attribute: Any, value: str) -> None:
    if "{response}" not in value:
        raise ValueError(f"{attribute.name} must contain {{response}}, found {value!r:.80}")


def _above_low(instance: Any, attribute: Any, value: float) -> None:
    if value <= instance.low:
        raise ValueError(f"{attribute.name} must be above low ({instance.low:g}), found {value:g}")


def _short_and_greedy() -> dict[str, Any]:
    return {"temperature": 0.0, "max_new_tokens": 4}


def _yes_or_no() -> dict[str, float]:
    return {"yes": 1.0, "no": 0.0}


@frozen(kw_only=True)
class GenRMJudgeOptions:
    """``[rewards.<name>.options]`` of ``genrm_judge``.

    ask: ``completion`` sends the template as plain text to be continued: any model continues the
        pattern of the default one with yes or no, also one too small to follow an instruction.
        ``chat`` sends it as a user message, rendered with the judge's own chat template.
    template: what the judge reads; ``{prompt}``, ``{answer}`` (empty if there is none) and
        ``{response}`` are replaced.
    system: system message before a chat; None sends none.
    verdicts: word → what it is worth; case does not count. Empty: the judge is asked for a number.
    low, high: the range in which numbers are asked for; ``low`` is worth 0, ``high`` is worth 1.
    scale: the reward is this times what the verdict is worth.
    sampling: the judge's sampling parameters; the verdict should be short.
    model, route_key: which judge, if the role has several.
    """

    ask: Ask = field(default="completion", validator=validators.in_(("completion", "chat")))
    template: str = field(default=TEMPLATE, validator=_has_response)
    system: str | None = None
    verdicts: Mapping[str, float] = field(factory=_yes_or_no)
    low: float = 0.0
    high: float = field(default=9.0, validator=_above_low)
    scale: float = field(default=1.0, validator=validators.gt(0))
    sampling: Mapping[str, Any] = field(factory=_short_and_greedy)
    model: str | None = None
    route_key: str | None = None


class GenRMJudge:
    """One judge request a sample; a group's requests share an affinity key, so their common
    beginning is computed once."""

    name: ClassVar[str] = "genrm_judge"
    api_version: ClassVar[int] = ROLECALL_API
    options: ClassVar[type[GenRMJudgeOptions]] = GenRMJudgeOptions
    supports_deferred: ClassVar[bool] = True
    role: ClassVar[str | None] = "genrm"
    reads: ClassVar[frozenset[str]] = frozenset({"response", "prompt.text", "prompt.answer"})

    def __init__(self, options: GenRMJudgeOptions) -> None:
        self._options = options
        self._words = {word.casefold(): worth for word, worth in options.verdicts.items()}

    async def score(self, sample: Sample, client: ScoringClient | None) -> float:
        """Return what the judge's verdict is worth, times the scale.

        Raises:
            RequestError: the judge could not be asked.
            ValueError: its answer is no verdict.
        """
        assert client is not None, "an adapter that names a role gets a client"
        ask = self._chat if self._options.ask == "chat" else self._complete
        return self.reward(await ask(sample, client))

    async def _chat(self, sample: Sample, client: ScoringClient) -> str:
        system = self._options.system
        messages = [] if system is None else [{"role": "system", "content": system}]
        messages.append({"role": "user", "content": self.question(sample)})
        return await client.chat(
            messages,
            sampling=self._options.sampling,
            model=self._options.model,
            route_key=self._options.route_key,
            affinity_key=sample.group_id,
        )

    async def _complete(self, sample: Sample, client: ScoringClient) -> str:
        answer = await client.generate(
            {"text": self.question(sample), "sampling_params": dict(self._options.sampling)},
            model=self._options.model,
            route_key=self._options.route_key,
            affinity_key=sample.group_id,
        )
        text = answer.get("text")
        if not isinstance(text, str):
            raise UpstreamError(f"the judge answered without text: {answer!r:.120}")
        return text

    def question(self, sample: Sample) -> str:
        """Return what the judge reads about a sample.

        In a text to be continued the response becomes one line: a line of its own that says
        ``Correct: yes`` would read as the judge's.
        """
        response = sample.response.strip()
        values = {
            "prompt": sample.prompt.text,
            "answer": sample.prompt.answer or "",
            "response": response if self._options.ask == "chat" else " ".join(response.split()),
        }
        # One pass: a response that contains "{answer}" stays as it is.
        return _PLACEHOLDERS.sub(lambda match: values[match[1]], self._options.template)

    def reward(self, verdict: str) -> float:
        """Return the reward for a verdict, or raise ``ValueError`` if it is none."""
        worth = self._worth_of_word(verdict) if self._words else self._worth_of_number(verdict)
        return worth * self._options.scale

    def _worth_of_word(self, verdict: str) -> float:
        first = _FIRST_WORD.match(verdict)
        if first is None or first[1].casefold() not in self._words:
            raise ValueError(f"the verdict starts with none of {', '.join(self._words)}: {verdict!r:.80}")
        return self._words[first[1].casefold()]

    def _worth_of_number(self, verdict: str) -> float:
        low, high = self._options.low, self._options.high
        found = _NUMBER.search(verdict)
        if found is None:
            raise ValueError(f"the verdict has no number: {verdict!r:.80}")
        grade = float(found[0])
        if not low <= grade <= high:
            raise ValueError(f"the verdict {grade:g} is not between {low:g} and {high:g}: {verdict!r:.80}")
        return (grade - low) / (high - low)


@hookimpl
def rolecall_reward_adapter() -> type[RewardAdapter]:
    return GenRMJudge
