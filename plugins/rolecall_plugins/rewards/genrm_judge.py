"""``genrm_judge``: asks the judge role for a grade and scales it to a reward.

The verdict is the first number in the judge's answer. No number, or one outside the range, is an
error, and the reward's ``on_error`` says what that means: it is never a grade of 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from attrs import field, frozen, validators

from rolecall.api import ROLECALL_API, RewardAdapter, Sample, ScoringClient, UpstreamError, hookimpl

_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")

_PLACEHOLDERS = re.compile(r"\{(prompt|answer|response)\}")

TEMPLATE = """\
Grade each answer with one digit: 9 if it agrees with the reference, 0 if it does not.

Question: What is 1 + 1?
Reference: 2
Answer: 1 + 1 = 2
Grade: 9

Question: What is the capital of England?
Reference: London
Answer: It is a kind of cake.
Grade: 0

Question: What is 20 times 2?
Reference: 40
Answer: 20 times 2 is 12.
Grade: 0

Question: What colour is blood?
Reference: Red
Answer: The colour of blood is red.
Grade: 9

Question: {prompt}
Reference: {answer}
Answer: {response}
Grade:"""

Ask = Literal["completion", "chat"]


def _has_response(_: object, attribute: Any, value: str) -> None:
    if "{response}" not in value:
        raise ValueError(f"{attribute.name} must contain {{response}}, found {value!r:.80}")


def _above_low(instance: Any, attribute: Any, value: float) -> None:
    if value <= instance.low:
        raise ValueError(f"{attribute.name} must be above low ({instance.low:g}), found {value:g}")


def _short_and_greedy() -> dict[str, Any]:
    return {"temperature": 0.0, "max_new_tokens": 8}


@frozen(kw_only=True)
class GenRMJudgeOptions:
    """``[rewards.<name>.options]`` of ``genrm_judge``.

    ask: ``completion`` sends the template as plain text to be continued: any model continues the
        pattern of the default one with a digit, also one too small to follow an instruction.
        ``chat`` sends it as a user message, rendered with the judge's own chat template.
    template: what the judge reads; ``{prompt}``, ``{answer}`` (empty if there is none) and
        ``{response}`` are replaced.
    system: system message before a chat; None sends none.
    low, high: the range that the judge is asked to grade in.
    scale: reward for a grade of ``high``; ``low`` gives 0.
    sampling: the judge's sampling parameters; the verdict should be short.
    model, route_key: which judge, if the role has several.
    """

    ask: Ask = field(default="completion", validator=validators.in_(("completion", "chat")))
    template: str = field(default=TEMPLATE, validator=_has_response)
    system: str | None = None
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

    async def score(self, sample: Sample, client: ScoringClient | None) -> float:
        """Return the grade on the scale.

        Raises:
            RequestError: the judge could not be asked.
            ValueError: its answer is no grade in the range.
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
        ``Grade: 9`` would read as the judge's.
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
        low, high = self._options.low, self._options.high
        found = _NUMBER.search(verdict)
        if found is None:
            raise ValueError(f"the verdict has no number: {verdict!r:.80}")
        grade = float(found[0])
        if not low <= grade <= high:
            raise ValueError(f"the verdict {grade:g} is not between {low:g} and {high:g}: {verdict!r:.80}")
        return (grade - low) / (high - low) * self._options.scale


@hookimpl
def rolecall_reward_adapter() -> type[RewardAdapter]:
    return GenRMJudge
