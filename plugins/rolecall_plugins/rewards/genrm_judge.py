"""``genrm_judge``: asks the judge role for a grade and scales it to a reward.

The verdict is the first number in the judge's answer. No number, or one outside the range, is an
error, and the reward's ``on_error`` says what that means: it is never a grade of 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from attrs import field, frozen, validators

from rolecall.api import ROLECALL_API, RewardAdapter, Sample, ScoringClient, hookimpl

_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")

_PLACEHOLDERS = re.compile(r"\{(prompt|answer|response)\}")

TEMPLATE = """\
Grade the answer to a question with one digit from 0 (wrong) to 9 (right).

Question: What is 1 + 1?
Reference: 2
Answer: 1 + 1 = 2
Grade: 9

Question: What is the capital of England?
Reference: London
Answer: It is a kind of cake.
Grade: 0

Question: {prompt}
Reference: {answer}
Answer: {response}
Grade:"""


def _has_response(_: object, attribute: Any, value: str) -> None:
    if "{response}" not in value:
        raise ValueError(f"{attribute.name} must contain {{response}}, found {value!r:.80}")


def _above_low(instance: Any, attribute: Any, value: float) -> None:
    if value <= instance.low:
        raise ValueError(f"{attribute.name} must be above low ({instance.low:g}), found {value:g}")


@frozen(kw_only=True)
class GenRMJudgeOptions:
    """``[rewards.<name>.options]`` of ``genrm_judge``.

    template: the user message; ``{prompt}``, ``{answer}`` (empty if there is none) and
        ``{response}`` are replaced. Examples with both grades steady a small judge.
    system: system message before it; None sends none.
    low, high: the range that the judge is asked to grade in.
    scale: reward for a grade of ``high``; ``low`` gives 0.
    sampling: the judge's sampling parameters; the verdict should be short.
    model, route_key: which judge, if the role has several.
    """

    template: str = field(default=TEMPLATE, validator=_has_response)
    system: str | None = None
    low: float = 0.0
    high: float = field(default=9.0, validator=_above_low)
    scale: float = field(default=1.0, validator=validators.gt(0))
    sampling: Mapping[str, Any] = field(factory=lambda: {"temperature": 0.0, "max_new_tokens": 8})
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
        verdict = await client.chat(
            self.messages(sample),
            sampling=self._options.sampling,
            model=self._options.model,
            route_key=self._options.route_key,
            affinity_key=sample.group_id,
        )
        return self.reward(verdict)

    def messages(self, sample: Sample) -> list[dict[str, Any]]:
        """Return the chat that asks for a grade."""
        values = {
            "prompt": sample.prompt.text,
            "answer": sample.prompt.answer or "",
            "response": sample.response.strip(),
        }
        # One pass: a response that contains "{answer}" stays as it is.
        content = _PLACEHOLDERS.sub(lambda match: values[match[1]], self._options.template)
        system = [] if self._options.system is None else [{"role": "system", "content": self._options.system}]
        return [*system, {"role": "user", "content": content}]

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
