"""``genrm_judge``: asks the judge role for a verdict and turns it into a reward.

A verdict is a known word at the start of the judge's answer or, without words, the first number in
it; or a field of a JSON object; or how likely the judge's next token is yes. An answer that is none,
or a number out of range, is an error, and the reward's ``on_error`` says what that means: it is never
a reward of 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from attrs import field as attrs_field
from attrs import frozen, validators

from rolecall.api import (
    ROLECALL_API,
    JsonVerdict,
    NumberVerdict,
    RewardAdapter,
    Sample,
    ScoringClient,
    UpstreamError,
    WordVerdict,
    YesNoVerdict,
    hookimpl,
)

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
Form = Literal["text", "json", "log_prob"]
Place = Literal["first", "last", "whole"]


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
    form: ``text``: the verdict is a word or a number in the answer. ``json``: it is a field of the one JSON
        object in the answer. ``log_prob``: it is how likely the judge goes on with a word of ``yes`` rather
        than of ``no``, from 0 to 1; nothing is parsed, and ``ask`` has to be ``completion``.
    where: which word or number of a text counts.
    field: of ``json``: the field's name, with dots for objects in it.
    schema: of ``json``: what the whole object has to look like, in a small part of JSON Schema.
    yes, no: of ``log_prob``: the tokens that say it; case and blanks around don't count.
    least_mass: of ``log_prob``: yes and no together have to be as likely as that.
    low, high: the range in which numbers are asked for; ``low`` is worth 0, ``high`` is worth 1.
    scale: the reward is this times what the verdict is worth.
    sampling: the judge's sampling parameters; the verdict should be short.
    model, route_key: which judge, if the role has several.
    """

    ask: Ask = attrs_field(default="completion", validator=validators.in_(("completion", "chat")))
    template: str = attrs_field(default=TEMPLATE, validator=_has_response)
    system: str | None = None
    verdicts: Mapping[str, float] = attrs_field(factory=_yes_or_no)
    form: Form = attrs_field(default="text", validator=validators.in_(("text", "json", "log_prob")))
    where: Place = attrs_field(default="first", validator=validators.in_(("first", "last", "whole")))
    field: str = "score"
    schema: Mapping[str, Any] = attrs_field(factory=dict)
    yes: tuple[str, ...] = ("yes",)
    no: tuple[str, ...] = ("no",)
    least_mass: float = 0.5
    low: float = 0.0
    high: float = attrs_field(default=9.0, validator=_above_low)
    scale: float = attrs_field(default=1.0, validator=validators.gt(0))
    sampling: Mapping[str, Any] = attrs_field(factory=_short_and_greedy)
    model: str | None = None
    route_key: str | None = None

    def __attrs_post_init__(self) -> None:
        if self.form == "log_prob" and self.ask == "chat":
            raise ValueError('ask must be "completion" for form = "log_prob": a chat answers with text only')
        # Made once for their own checks: what is wrong is told before anything starts.
        JsonVerdict(path=self.field, schema=self.schema, low=self.low, high=self.high, words=self.verdicts)
        YesNoVerdict(yes=self.yes, no=self.no, least_mass=self.least_mass)


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
        self._yes_no = YesNoVerdict(yes=options.yes, no=options.no, least_mass=options.least_mass)

    async def score(self, sample: Sample, client: ScoringClient | None) -> float:
        """Return what the judge's verdict is worth, times the scale.

        Raises:
            RequestError: the judge could not be asked.
            ValueError: its answer is no verdict.
        """
        assert client is not None, "an adapter that names a role gets a client"
        if self._options.ask == "chat":
            return self.reward(await self._chat(sample, client))
        if self._options.form == "log_prob":
            return self._yes_no.read(await self._complete(sample, client)) * self._options.scale
        answer = await self._complete(sample, client)
        text = answer.get("text")
        if not isinstance(text, str):
            raise UpstreamError(f"the judge answered without text: {answer!r:.120}")
        return self.reward(text)

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

    async def _complete(self, sample: Sample, client: ScoringClient) -> dict[str, Any]:
        sampling = dict(self._options.sampling)
        payload: dict[str, Any] = {"text": self.question(sample), "sampling_params": sampling}
        if self._options.form == "log_prob":
            sampling["max_new_tokens"] = 1
            payload |= self._yes_no.fields()
        return await client.generate(
            payload,
            model=self._options.model,
            route_key=self._options.route_key,
            affinity_key=sample.group_id,
        )

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
        """Return the reward for a verdict that is text, or raise ``ValueError`` if it is none."""
        return self._worth(verdict) * self._options.scale

    def _worth(self, verdict: str) -> float:
        options = self._options
        number = NumberVerdict(low=options.low, high=options.high, where=options.where)
        if options.form == "json":
            found = JsonVerdict(
                path=options.field,
                schema=options.schema,
                low=options.low,
                high=options.high,
                words=options.verdicts,
            )
            worth = found.read(verdict)
            value = found.value(verdict)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            return number.share(worth) if is_number else worth
        if options.verdicts:
            return WordVerdict(words=options.verdicts, where=options.where).read(verdict)
        return number.share(number.read(verdict))


@hookimpl
def rolecall_reward_adapter() -> type[RewardAdapter]:
    return GenRMJudge
