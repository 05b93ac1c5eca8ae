"""``self_consistency``: how often the policy comes to the same answer when it is asked again.

A reward without references: the share of further answers to the same prompt that agree with the
sample's. It can't be deferred. The answers have to come from the weights that made the sample, so the
policy has to be awake while it scores, and unchanged; where the roles take turns on their devices, the
policy has given its own away by then. An answer under other weights is an error, never a vote.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, ClassVar, cast

from attrs import Attribute, field, frozen, validators

from rolecall.api import (
    RewardAdapter,
    Sample,
    ScoringClient,
    ScoringError,
    UpstreamError,
    gather_bounded,
    hookimpl,
)

from .checks import is_regular_expression

_AT_ONCE = 4
_SEEDS = 2**31 - 1
"""Seeds are kept below this, which every engine can hold."""


def _has_one_group(_: Any, attribute: Attribute[str], value: str) -> None:
    groups = re.compile(value).groups
    if groups != 1:
        raise ValueError(f"{attribute.name} must have one group, the answer; {value!r} has {groups}")


@frozen(kw_only=True)
class SelfConsistencyOptions:
    """``[rewards.<name>.options]`` of ``self_consistency``.

    votes: how many further answers are asked for, for each sample.
    answer: regular expression (Python's ``re``) whose one group is the answer; its last match in a
        response counts. The default is the last number.
    sampling: sampling parameters of the votes; with a ``sampling_seed`` each vote gets one of its own.
    """

    votes: int = field(default=4, validator=validators.ge(1))
    answer: str = field(default=r"(-?\d+(?:\.\d+)?)", validator=[is_regular_expression, _has_one_group])
    sampling: Mapping[str, Any] = field(factory=lambda: {"temperature": 0.8, "max_new_tokens": 64})


class SelfConsistency:
    """Asks the policy ``votes`` times for each sample; a group shares an affinity key, so its prompt is
    computed once."""

    name: ClassVar[str] = "self_consistency"
    api_version: ClassVar[int] = 1
    options: ClassVar[type[SelfConsistencyOptions]] = SelfConsistencyOptions
    supports_deferred: ClassVar[bool] = False
    role: ClassVar[str | None] = "rollout"
    reads: ClassVar[frozenset[str]] = frozenset({"sample_id", "prompt_ids", "response", "weight_version"})

    def __init__(self, options: SelfConsistencyOptions) -> None:
        self._options = options
        self._answer = re.compile(options.answer)

    async def score(self, sample: Sample, client: ScoringClient | None) -> float:
        """Return the share of votes that agree, 0 to 1. A response without an answer agrees with none.

        Raises:
            RequestError: the policy could not be asked.
            ScoringError: the policy has other weights by now.
        """
        assert client is not None, "an adapter that names a role gets a client"
        mine = self.answer_in(sample.response)
        if mine is None:
            return 0.0

        async def vote(index: int) -> bool:
            return self.answer_in(await self._ask(sample, index, client)) == mine

        agreed = await gather_bounded(range(self._options.votes), vote, _AT_ONCE)
        return sum(agreed) / len(agreed)

    def answer_in(self, response: str) -> str | None:
        """Return the answer in a response, None if it gives none."""
        found: list[str] = self._answer.findall(response)
        return found[-1] if found else None

    async def _ask(self, sample: Sample, index: int, client: ScoringClient) -> str:
        answer = await client.generate(
            {"input_ids": list(sample.prompt_ids), "sampling_params": self._sampling(sample, index)},
            affinity_key=sample.group_id,
        )
        text, meta = answer.get("text"), answer.get("meta_info")
        if not isinstance(text, str) or not isinstance(meta, Mapping):
            raise UpstreamError(f"the policy answered without text or meta_info: {answer!r:.120}")
        version = cast("Mapping[str, Any]", meta).get("weight_version")
        found = None if version is None else str(version)
        if found != sample.weight_version:
            raise ScoringError(
                f"the policy answered with weights {found}, "
                f"but the sample was made with {sample.weight_version}"
            )
        return text

    def _sampling(self, sample: Sample, index: int) -> dict[str, Any]:
        params = dict(self._options.sampling)
        if "sampling_seed" in params:
            # One seed for all votes would make them all the same.
            name = f"{params['sampling_seed']}/{sample.sample_id}/{index}"
            params["sampling_seed"] = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) % _SEEDS
        return params


@hookimpl
def rolecall_reward_adapter() -> type[RewardAdapter]:
    """Return the adapter's class."""
    return SelfConsistency
