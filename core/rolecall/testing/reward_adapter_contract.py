"""Contract of reward adapters, as a test class to inherit.

    class TestPoliteness(RewardAdapterContract):
        plugin = Politeness
        options = {"words": ["please"]}
        verdicts = ("yes", "no")        # what its judge may say, if it asks one

An adapter whose ``role`` is None asks nobody; tests of what it does with a judge's answers are skipped.
"""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import pytest
from attrs import evolve

from rolecall.batches.finite import is_finite_number
from rolecall.batches.rewards import reward_field, reward_stage, score_with_policy
from rolecall.batches.sample import Sample
from rolecall.batches.schedule import is_generated
from rolecall.batches.validation import check_scores
from rolecall.errors import (
    DeadlineError,
    ModelUnavailableError,
    PayloadError,
    ScoringError,
    UpstreamError,
)
from rolecall.interfaces.reward_adapter import RewardAdapter, ScoringClient
from rolecall.interfaces.role import NamedReward, StageContext
from rolecall.plugins.kinds import PluginKind
from rolecall.testing.cancelling import cancel_when
from rolecall.testing.plugin_contract import PluginContract
from rolecall.testing.samples import make_samples
from rolecall.testing.scripted_client import ScriptedClient
from rolecall.testing.watched_sample import undeclared, watched

_ERRORS: tuple[Exception, ...] = (
    UpstreamError("the engine could not be reached"),
    DeadlineError("the request's deadline passed"),
    ModelUnavailableError("no replica may be asked now", retry_after_s=0.01),
    PayloadError("model: unknown", field="model"),
)


class RewardAdapterContract(PluginContract):
    """What every reward adapter has to do.

    Attributes:
        verdicts: what the judge may answer; which one depends on the question.
        garbage: answers of a judge that are no verdict, each of which has to be refused. Empty if any text
            is one.
        patience_s: how long a cancelled score may take to end.
    """

    kind: ClassVar[PluginKind] = PluginKind.REWARD_ADAPTER
    verdicts: ClassVar[Sequence[str]] = ("1", "0")
    garbage: ClassVar[Sequence[str]] = ("", " \n", "I can not say.", "\ufffd\ufffd")
    patience_s: ClassVar[float] = 5.0

    def fresh(self) -> RewardAdapter:
        """Return a new instance with ``options``."""
        return self.plugin(self.made_options())

    @property
    def _role(self) -> str | None:
        """The role that the adapter asks, with these options."""
        return self.fresh().role

    def samples(self) -> list[Sample]:
        """Return samples that the adapter can score; override if the default ones lack what it reads."""
        return make_samples()

    def client(self) -> ScoringClient | None:
        """Return what the adapter may ask; None if it names no role."""
        return None if self._role is None else ScriptedClient(verdicts=self.verdicts)

    # --- the reward -----------------------------------------------------------------------

    async def test_every_sample_gets_a_finite_number(self) -> None:
        """No nan, no infinity, no None, no bool."""
        adapter = self.fresh()
        for sample in self.samples():
            reward = await adapter.score(sample, self.client())
            assert is_finite_number(reward), f"{sample.sample_id} got {reward!r}"

    async def test_an_odd_sample_gets_a_finite_number_or_an_error(self) -> None:
        """No reference answer, no response, a response of noise: raise what is wrong, or score it."""
        adapter = self.fresh()
        for sample in self.samples():
            for odd in (
                evolve(sample, prompt=evolve(sample.prompt, answer=None, data_source=None, metadata={})),
                evolve(sample, response="", response_ids=(), rollout_log_probs=()),
                evolve(sample, response="\x00\ud800 {answer} \\1 <|im_end|> " * 50),
            ):
                try:
                    reward = await adapter.score(odd, self.client())
                except Exception:  # noqa: BLE001, S112 - any error is right here; its policy decides
                    continue
                assert is_finite_number(reward), f"it got {reward!r}"

    async def test_the_same_sample_gets_the_same_reward(self) -> None:
        """Again, from another instance, and after other samples: a retried stage gives what the first
        gave."""
        used = self.fresh()
        rewards = await self._rewards(used)
        assert await self._rewards(used) == rewards, "the second time it is another"
        assert await self._rewards(self.fresh()) == rewards, "another instance gives another"
        backwards: dict[str, float] = {}
        for sample in reversed(self.samples()):
            backwards[sample.sample_id] = await used.score(sample, self.client())
        assert [backwards[sample.sample_id] for sample in self.samples()] == rewards, "the order matters"

    async def test_the_sample_is_left_as_it_was(self) -> None:
        """Its metadata and scores, too: what a stage computes goes into its answer, never into a sample."""
        adapter = self.fresh()
        for sample in self.samples():
            before = pickle.dumps(sample)
            await adapter.score(sample, self.client())
            assert pickle.dumps(sample) == before, f"the adapter changed {sample.sample_id}"

    async def test_it_reads_what_it_declares(self) -> None:
        """``reads`` orders the stages: what is not declared may not be there yet. Ids may be read."""
        adapter = self.fresh()
        reads = self.fresh().reads
        unknown = sorted(name for name in reads if name.startswith("prompt.") and not is_generated(name))
        assert not unknown, f"prompts have no {', '.join(unknown)}"
        for sample in self.samples():
            seen, names = watched(sample)
            await adapter.score(seen, self.client())
            others = undeclared(names, reads)
            assert not others, f"it read {', '.join(others)}, which its reads do not name"

    async def test_scores_at_the_same_time_do_not_mix(self) -> None:
        """Many samples are scored at once by one instance, and the last asked may be answered first."""
        adapter = self.fresh()
        samples = self.samples()
        alone = await self._rewards(adapter)
        client = self.client()
        if isinstance(client, ScriptedClient):

            def last_comes_first(number: int) -> int:
                return 3 * max(1, len(samples) - number)

            client.turns = last_comes_first
        together = await asyncio.gather(*(adapter.score(sample, client) for sample in samples))
        assert list(together) == alone, "scored at the same time they get others than one after another"

    # --- whom it asks -----------------------------------------------------------------------

    async def test_it_asks_its_role_and_nobody_without_one(self) -> None:
        """An adapter that names a role asks it about a sample at least; its requests are JSON. One that
        names none scores without a client."""
        if self._role is None:
            await self._rewards(self.fresh())
            return
        client = ScriptedClient(verdicts=self.verdicts)
        adapter = self.fresh()
        for sample in self.samples():
            await adapter.score(sample, client)
        assert client.requests, f'it keeps the role "{self._role}" awake and never asks it'
        for request in client.requests:
            assert json.loads(json.dumps(request)) == request, f"this can't be sent as JSON: {request!r}"

    @pytest.mark.parametrize("error", _ERRORS, ids=[type(error).__name__ for error in _ERRORS])
    async def test_an_error_of_the_judge_is_never_a_reward(self, error: Exception) -> None:
        """A judge that can't be asked makes ``score`` raise; what that means is the reward's policy."""
        adapter = self.fresh()
        for sample in await self._samples_that_ask():
            await self._must_raise(
                adapter, sample, lambda: self._failing(error), f"{error!r} came from the judge"
            )

    async def test_an_answer_that_is_no_verdict_is_never_a_reward(self) -> None:
        """A judge that rambles or answers outside its protocol makes ``score`` raise, too."""
        asking = await self._samples_that_ask()
        if not self.garbage:
            pytest.skip("every text is a verdict")
        adapter = self.fresh()
        for sample in asking:
            for words in self.garbage:
                await self._must_raise(
                    adapter,
                    sample,
                    lambda words=words: ScriptedClient(verdicts=(words,)),
                    f"the judge said {words!r}",
                )

    async def test_a_score_that_is_cancelled_ends(self) -> None:
        """At once, with nothing left running; no error and no number takes the cancellation's place."""
        adapter = self.fresh()
        if self._role is None:
            for sample in self.samples():
                await cancel_when(asyncio.sleep(0), adapter.score(sample, None), self.patience_s)
            return
        for sample in (await self._samples_that_ask())[:2]:
            client = ScriptedClient(stuck=True)
            await cancel_when(client.until_asked(), adapter.score(sample, client), self.patience_s)
            assert client.under_way == 0, "it still asks the judge"

    # --- as the core runs it ----------------------------------------------------------------

    @pytest.mark.parametrize("on_error", ["fail_batch", "drop_sample", "retry"])
    async def test_the_reward_s_error_policy_decides(self, on_error: str) -> None:
        """``fail_batch`` raises with the judge's error as the cause, ``drop_sample`` drops this sample,
        ``retry`` asks again."""
        sample = (await self._samples_that_ask())[0]
        reward = self._reward(on_error)
        if on_error == "fail_batch":
            with pytest.raises(ScoringError) as failed:
                await score_with_policy(sample, reward, self._failing(_ERRORS[0]))
            assert failed.value.__cause__ is not None
        elif on_error == "drop_sample":
            assert await score_with_policy(sample, reward, self._failing(_ERRORS[0])) is None
        else:
            alone = await self.fresh().score(sample, self.client())
            broken_once = ScriptedClient(
                verdicts=self.verdicts, fails=lambda number: _ERRORS[0] if number == 0 else None
            )
            assert await score_with_policy(sample, reward, broken_once) == alone

    async def test_a_judge_that_keeps_quiet_is_never_a_reward(self) -> None:
        """The reward's ``timeout_s`` ends a score; an adapter that swallows that has no timeout."""
        sample = (await self._samples_that_ask())[0]
        reward = evolve(self._reward("fail_batch"), timeout_s=0.05)
        with pytest.raises(ScoringError, match=r"no reward within 0\.05 s"):
            await score_with_policy(sample, reward, ScriptedClient(stuck=True))

    async def test_a_deferred_adapter_scores_what_generation_left(self) -> None:
        """With ``supports_deferred`` it runs in a stage after generation, on copies of the samples that
        other stages have added scores to, and gives the same rewards."""
        if not self.fresh().supports_deferred:
            pytest.skip("preflight refuses it in a deferred job")
        samples = self.samples()
        alone = await self._rewards(self.fresh())
        later: list[Sample] = [
            pickle.loads(pickle.dumps(evolve(sample, scores={**sample.scores, "another_stage": 1.0})))
            for sample in samples
        ]
        reward = self._reward("fail_batch")
        stage = reward_stage(name="rewards", role=self._role, rewards=[reward])
        context = StageContext(client=self.client(), max_concurrency=3, progress=_unseen)
        scores = await stage.run(later, context)
        check_scores(stage, later, scores)
        found = [_fields(scores[sample.sample_id])[reward_field(reward.name)] for sample in later]
        assert found == alone, "in a stage after generation they get others than before"

    # --- shared by the tests ------------------------------------------------------------------

    async def _rewards(self, adapter: RewardAdapter) -> list[float]:
        client = self.client()
        return [await adapter.score(sample, client) for sample in self.samples()]

    async def _samples_that_ask(self) -> list[Sample]:
        """Return the samples about which the adapter asks; skip if it names no role."""
        if self._role is None:
            pytest.skip("it asks nobody")
        asking: list[Sample] = []
        for sample in self.samples():
            client = ScriptedClient(verdicts=self.verdicts)
            await self.fresh().score(sample, client)
            if client.requests:
                asking.append(sample)
        assert asking, f'it keeps the role "{self._role}" awake and never asks it'
        return asking

    def _failing(self, error: Exception) -> ScriptedClient:
        def fails(number: int) -> Exception:
            del number
            return error

        return ScriptedClient(verdicts=self.verdicts, fails=fails)

    async def _must_raise(
        self, adapter: RewardAdapter, sample: Sample, client: Callable[[], ScriptedClient], because: str
    ) -> None:
        try:
            reward = await adapter.score(sample, client())
        except Exception:  # noqa: BLE001 - whatever it raises, the reward's policy handles it
            return
        pytest.fail(f"{because}, and {sample.sample_id} got the reward {reward!r}")

    def _reward(self, on_error: str) -> NamedReward:
        return NamedReward(name="it", adapter=self.fresh(), on_error=on_error, retries=1, timeout_s=30.0)


def _unseen(samples: int, tokens: int) -> None:
    del samples, tokens


def _fields(fields: Mapping[str, Any] | None) -> Mapping[str, Any]:
    assert fields is not None, "a sample was dropped, although nothing failed"
    return fields
