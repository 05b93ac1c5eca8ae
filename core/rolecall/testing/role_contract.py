"""Contract of roles, as a test class to inherit.

    class TestCritic(RoleContract):
        plugin = Critic
        options = {"top_k": 4}

What a role has not, it is not tested for: endpoints, a generation stage, scoring stages, rewards that ask it.
Stages that ask engines are answered by a :class:`~rolecall.testing.scripted_client.ScriptedClient`.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import re
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any, ClassVar

import httpx
import pytest
from attrs import define, field

from rolecall.batches.rewards import reward_field
from rolecall.batches.sample import Prompt, Sample, Scores
from rolecall.batches.schedule import is_generated, order_stages
from rolecall.batches.validation import check_generated, check_scores
from rolecall.errors import PayloadError, ScoringError, UpstreamError
from rolecall.ids import RoleName
from rolecall.interfaces.reward_adapter import ScoringClient
from rolecall.interfaces.role import (
    GenerationContext,
    NamedReward,
    Progress,
    Role,
    Stage,
    StageContext,
    StageRequest,
    WeightSource,
)
from rolecall.interfaces.token_ids import TokenIds
from rolecall.plugins.hookspecs import ROLECALL_API
from rolecall.plugins.kinds import PluginKind
from rolecall.testing.cancelling import cancel_when
from rolecall.testing.plain_role import PlainRole
from rolecall.testing.plane import plane
from rolecall.testing.plugin_contract import PluginContract
from rolecall.testing.samples import make_samples
from rolecall.testing.scripted_client import ScriptedClient
from rolecall.testing.watched_sample import undeclared, watched

_PATHS = ("/generate", "/v1/chat/completions")
_UNKNOWN = "never_heard_of"
_REWARDS = ("first", "second")


def _unseen(samples: int, tokens: int) -> None:
    del samples, tokens


class RoleContract(PluginContract):
    """What every role has to do.

    Attributes:
        verdicts: what the role's engines answer when they are asked to judge.
        patience_s: how long a cancelled stage may take to end.
    """

    kind: ClassVar[PluginKind] = PluginKind.ROLE
    verdicts: ClassVar[Sequence[str]] = ("1", "0")
    patience_s: ClassVar[float] = 5.0

    def fresh(self) -> Role:
        """Return a new instance with ``options``."""
        return self.plugin(self.made_options())

    def payloads(self) -> list[dict[str, Any]]:
        """Return ``/generate`` bodies that the role takes; none if it takes none."""
        return [
            {"text": "What is 2 + 2?"},
            {"text": "猫", "stream": True, "rid": "r"},
            {
                "input_ids": [1, 2, 3],
                "sampling_params": {"temperature": 0.5, "max_new_tokens": 2, "stop": ["x"]},
                "return_logprob": True,
                "logprob_start_len": 0,
            },
        ]

    def bad_payloads(self) -> list[tuple[str, dict[str, Any]]]:
        """Return bodies that it has to refuse, each with the field that is wrong."""
        return [
            ("text", {}),
            ("text", {"text": 7}),
            ("text", {"text": ["two", "prompts"]}),
            ("input_ids", {"input_ids": []}),
            ("input_ids", {"input_ids": [1, -1]}),
            ("input_ids", {"input_ids": [[1, 2], [3]]}),
            ("input_ids", {"input_ids": [1], "text": "both"}),
            ("sampling_params", {"text": "x", "sampling_params": [{}]}),
            ("sampling_params.n", {"text": "x", "sampling_params": {"n": 2}}),
            ("stream", {"text": "x", "stream": "yes"}),
        ]

    def samples(self) -> list[Sample]:
        """Return samples that its stages can score; override if the default ones lack what they read."""
        return make_samples()

    def prompts(self) -> list[Prompt]:
        """Return prompts that it can make samples of."""
        return [
            Prompt(prompt_id=f"prompt-{number}", text=text, answer=str(number))
            for number, text in enumerate(("What is 2 + 2?", "Two\nlines and a 猫.", "a", "{prompt}"))
        ]

    # --- what it says of itself -----------------------------------------------------------

    def test_its_weight_sources_are_told_once_each(self) -> None:
        """The first is the default; none is told twice."""
        sources = self.plugin.weight_sources
        assert all(isinstance(source, WeightSource) for source in sources)
        assert len(set(sources)) == len(sources), f"weight_sources names one twice: {sources}"

    # --- payloads -------------------------------------------------------------------------

    def test_a_payload_it_takes_can_be_sent(self) -> None:
        """To a path of the engines' protocol, as JSON."""
        for payload in self.payloads():
            call = self.fresh().adapt_generate(deepcopy(payload))
            assert call.path in _PATHS, f"no engine serves {call.path}"
            sent = json.loads(json.dumps(call.payload))
            assert sent == call.payload, f"this can't be sent as JSON: {call.payload!r}"

    def test_a_payload_is_never_changed(self) -> None:
        """What differs from the request is put into a new body: the caller's is sent on as the bytes it
        came in. This holds for refused ones, too."""
        role = self.fresh()
        for payload in [*self.payloads(), *(bad for _, bad in self.bad_payloads())]:
            given = deepcopy(payload)
            with suppress(PayloadError):
                role.adapt_generate(given)
            assert given == payload, f"adapt_generate changed {payload} to {given}"

    def test_a_wrong_payload_is_refused_by_its_field(self) -> None:
        """With a ``PayloadError`` (400) that names the field; no other error, and nothing is sent."""
        role = self.fresh()
        for name, payload in self.bad_payloads():
            refusal = _refusal(role, payload)
            assert refusal is not None, f"{payload} was not refused; its {name} is wrong"
            assert refusal.field == name, f"{payload} was refused for {refusal.field}, not for {name}"
            assert _root(name) in str(refusal), f"the message does not name {name}: {refusal}"

    def test_a_field_it_does_not_know_is_passed_on_or_refused(self) -> None:
        """Engines learn new fields; one that vanishes on the way would be a silent change."""
        for payload in self.payloads():
            given = {**payload, _UNKNOWN: {"deep": [1, None]}}
            if (refusal := _refusal(self.fresh(), given)) is not None:
                assert refusal.field == _UNKNOWN, f"{_UNKNOWN} was refused as {refusal.field}: {refusal}"
                continue
            sent = self.fresh().adapt_generate(deepcopy(given)).payload
            assert sent.get(_UNKNOWN) == given[_UNKNOWN], f"{_UNKNOWN} was dropped of {given}"

    def test_a_payload_is_adapted_alike_every_time(self) -> None:
        """By the same instance, by another, and when a gateway adapts what another has adapted already."""
        used = self.fresh()
        for payload in self.payloads():
            first = used.adapt_generate(deepcopy(payload))
            for role in (used, self.fresh()):
                again = role.adapt_generate(deepcopy(payload))
                assert (again.path, again.payload) == (first.path, first.payload), f"another call: {payload}"
            if first.path == "/generate" and first.reply is None:
                twice = used.adapt_generate(deepcopy(dict(first.payload)))
                assert (twice.path, twice.payload) == (first.path, first.payload), (
                    f"adapting what is adapted changes it: {payload}"
                )

    def test_token_ids_of_a_payload_may_come_undecoded(self) -> None:
        """A gateway hands long lists of them over as :class:`~rolecall.api.TokenIds`."""
        for payload in self.payloads():
            texts = {name: json.dumps(value).encode() for name, value in payload.items()}
            given = {name: TokenIds.of(texts[name]) or value for name, value in payload.items()}
            call, usual = self.fresh().adapt_generate(given), self.fresh().adapt_generate(deepcopy(payload))
            assert call.path == usual.path
            assert call.payload == usual.payload, f"undecoded token ids change {usual.payload}"

    # --- endpoints ------------------------------------------------------------------------

    async def test_its_endpoints_stand_beside_the_standard_ones(self) -> None:
        """The gateway starts with them: none takes the place of a standard one. None has a bug that an
        empty request finds, and its payloads are served."""
        async with (
            plane(PlainRole(name=RoleName(self.plugin.name), plugin=self.fresh())) as running,
            httpx.AsyncClient(base_url=running.url, timeout=30, verify=False) as http,
        ):
            for endpoint in self.fresh().endpoints():
                path = re.sub(r"\{[^}]*\}", "1", endpoint.path)
                answer = await http.request(endpoint.method, path, params=dict(endpoint.query))
                assert answer.status_code not in (404, 405, 500), f"{endpoint}: {answer.text}"
            assert (await http.get("/health")).status_code == 200
            assert "schema_version" in (await http.get("/engines")).json(), "/engines is discovery's"
            for payload in self.payloads():
                answer = await http.post("/generate", json=payload)
                assert answer.status_code == 200, f"{payload}: {answer.text}"

    # --- scoring stages -------------------------------------------------------------------

    def test_its_stages_fit_into_a_batch(self) -> None:
        """Names are unique, each writes something and nothing that another or generation writes, and
        what they read is there."""
        stages = self._stages()
        order_stages([*stages, *_writers_of(stages)], awake=None)
        for stage in stages:
            assert stage.writes, f'stage "{stage.name}" writes nothing'

    def test_its_stages_are_the_same_every_time(self) -> None:
        """The planner and the runner ask for them separately: same request, same stages."""
        used = self.fresh()
        for rewards in ((), self._rewards()):
            request = self._request(rewards)
            declared = _declared(used.scoring_stages(request))
            assert _declared(used.scoring_stages(request)) == declared, "the second time they are others"
            assert _declared(self.fresh().scoring_stages(request)) == declared, "another instance has others"

    def test_rewards_that_name_the_role_are_all_written(self) -> None:
        """By one stage each, which also reads what the adapters read; a role that no reward may name
        writes none."""
        wanted = {reward_field(name) for name in _REWARDS}
        stages = self._stages()
        written = [name for stage in stages for name in stage.writes if name in wanted]
        assert not written or sorted(written) == sorted(wanted), (
            f"of the rewards {sorted(wanted)} its stages write {written}"
        )
        for stage in stages:
            if stage.writes & wanted:
                missing = _Asking.reads - stage.reads
                assert not missing, f'stage "{stage.name}" does not read {sorted(missing)} of its adapters'

    async def test_every_sample_is_scored(self) -> None:
        """With the declared fields and no others: many samples, one, and none at all."""
        for stage in self._stages():
            everyone = self._scored_before(stage)
            for samples in (everyone, everyone[:1], []):
                scores = await self._run(stage, samples, ScriptedClient(verdicts=self.verdicts))
                check_scores(stage, samples, scores)
                dropped = [name for name, fields in scores.items() if fields is None]
                assert not dropped, f'stage "{stage.name}" dropped {dropped}, and nothing had failed'

    async def test_samples_are_left_as_they_were(self) -> None:
        """Scores go into the stage's answer; they are written to samples when the whole batch is."""
        for stage in self._stages():
            samples = self._scored_before(stage)
            before = [pickle.dumps(sample) for sample in samples]
            await self._run(stage, samples, ScriptedClient(verdicts=self.verdicts))
            for sample, then in zip(samples, before, strict=True):
                assert pickle.dumps(sample) == then, f'stage "{stage.name}" changed {sample.sample_id}'

    async def test_a_stage_reads_no_other_stage_s_fields_than_it_declares(self) -> None:
        """``reads`` orders the stages: a field that is not declared may not be there yet."""
        for stage in self._stages():
            pairs = [watched(sample) for sample in self._scored_before(stage)]
            await self._run(stage, [sample for sample, _ in pairs], ScriptedClient(verdicts=self.verdicts))
            for _, names in pairs:
                others = [name for name in undeclared(names, stage.reads) if not is_generated(name)]
                assert not others, f'stage "{stage.name}" read {others}, which its reads do not name'

    async def test_progress_counts_every_sample_once(self) -> None:
        """While it runs, as samples finish, not as totals."""
        for stage in self._stages():
            samples = self._scored_before(stage)
            progress = _Progress()
            await self._run(stage, samples, ScriptedClient(verdicts=self.verdicts), progress=progress)
            progress.check(len(samples), f'stage "{stage.name}"')

    @pytest.mark.parametrize("limit", [1, 3])
    async def test_no_more_requests_at_once_than_allowed(self, limit: int) -> None:
        """``max_concurrency`` is what the engines are sized for."""
        for stage in self._stages_that_ask():
            client = ScriptedClient(verdicts=self.verdicts, turns=lambda number: 1 + number % 4)
            await self._run(stage, self._scored_before(stage), client, max_concurrency=limit)
            assert client.most_at_once <= limit, (
                f'stage "{stage.name}" had {client.most_at_once} requests in flight; allowed were {limit}'
            )

    @pytest.mark.parametrize("first_failure", [0, 1, 5])
    async def test_a_request_that_fails_fails_the_stage(self, first_failure: int) -> None:
        """No sample is left out, no score is made up, and nothing goes on behind the error."""
        for stage in self._stages_that_ask():
            client = ScriptedClient(
                verdicts=self.verdicts, fails=lambda number: _BROKEN if number >= first_failure else None
            )
            samples = self._scored_before(stage)
            await self._must_raise(
                self._run(stage, samples, client),
                f'the engines of stage "{stage.name}" failed from request {first_failure} on',
                client,
            )

    async def test_a_stage_that_is_cancelled_ends(self) -> None:
        """At once, with its requests ended and nothing left running."""
        for stage in self._stages():
            samples = self._scored_before(stage)
            client = ScriptedClient(stuck=True)
            asked = asyncio.sleep(0) if stage.role is None else client.until_asked()
            await cancel_when(asked, self._run(stage, samples, client), self.patience_s)
            assert client.under_way == 0, f'stage "{stage.name}" still asks'

    @pytest.mark.parametrize("on_error", ["fail_batch", "drop_sample", "retry"])
    async def test_a_reward_that_fails_is_its_policy_s_affair(self, on_error: str) -> None:
        """``fail_batch`` fails the stage, ``drop_sample`` drops this sample and no other, ``retry`` tries
        as often as it says."""
        samples = self.samples()
        failing = samples[2].sample_id
        adapters = [self._adapter(fails_on=failing), self._adapter()]
        rewards = tuple(
            NamedReward(name=name, adapter=adapter, on_error=on_error, retries=2, timeout_s=30.0)
            for name, adapter in zip(_REWARDS, adapters, strict=True)
        )
        (stage,) = self._reward_stages(rewards)
        run = self._run(stage, samples, ScriptedClient(verdicts=self.verdicts))
        if on_error == "drop_sample":
            scores = await run
            check_scores(stage, samples, scores)
            assert [name for name, fields in scores.items() if fields is None] == [failing]
            return
        with pytest.raises(ScoringError, match="it fails on this sample"):
            await run
        assert adapters[0].failures == (3 if on_error == "retry" else 1)

    async def test_every_reward_is_the_one_of_its_adapter(self) -> None:
        """Each sample's, each adapter's, in the field of its name."""
        samples = self.samples()
        rewards = self._rewards()
        for stage in self._reward_stages(rewards):
            scores = await self._run(stage, samples, ScriptedClient(verdicts=self.verdicts))
            for reward in rewards:
                for sample in samples:
                    fields = scores[sample.sample_id]
                    assert fields is not None
                    expected = await reward.adapter.score(sample, ScriptedClient(verdicts=self.verdicts))
                    found = fields[reward_field(reward.name)]
                    assert found == expected, f"{sample.sample_id} got {found} as {reward.name}"

    # --- generation -----------------------------------------------------------------------

    async def test_generation_returns_complete_groups_in_order(self) -> None:
        """Every prompt's samples, side by side, in the order of the prompts, whoever answers first; no
        sample has scores yet."""
        prompts = self.prompts()
        for chosen in (prompts, prompts[:1], prompts[::-1]):
            client = ScriptedClient(verdicts=self.verdicts, turns=lambda number: 1 + 7 * number % 5)
            samples = await self._generate(chosen, client)
            check_generated(samples, chosen, 3, "generation")
            assert len(samples) == 3 * len(chosen), "a prompt has no samples"
            for sample, prompt in zip(samples[::3], chosen, strict=True):
                assert sample.prompt == prompt

    async def test_generation_fails_whole(self) -> None:
        """The first request that fails ends it: groups that lack a sample are never returned."""
        prompts = self.prompts()
        client = ScriptedClient(verdicts=self.verdicts)
        await self._generate(prompts, client)
        calls = len(client.requests)
        for first in (0, calls // 2, calls - 1):
            failing = ScriptedClient(
                verdicts=self.verdicts, fails=lambda number, first=first: _BROKEN if number >= first else None
            )
            await self._must_raise(
                self._generate(prompts, failing), f"request {first} of {calls} failed", failing
            )

    async def test_generation_refuses_answers_that_are_none(self) -> None:
        """What is trained on is what the engine said, or nothing."""
        client = _Mute()
        await self._must_raise(self._generate(self.prompts(), client), "the engine answered {}", client)

    async def test_generation_tells_its_progress_and_keeps_its_bounds(self) -> None:
        """Every sample is counted once, and no more requests are in flight than allowed."""
        for limit in (1, 3):
            client = ScriptedClient(verdicts=self.verdicts, turns=lambda number: 1 + number % 4)
            progress = _Progress()
            samples = await self._generate(self.prompts(), client, max_concurrency=limit, progress=progress)
            progress.check(len(samples), "generation")
            assert client.most_at_once <= limit, (
                f"{client.most_at_once} requests were in flight; allowed were {limit}"
            )

    async def test_generation_leaves_what_it_was_given(self) -> None:
        """The sampling parameters are the job's, and those of the next batch."""
        prompts, sampling = self.prompts(), _sampling()
        before = pickle.dumps(prompts)
        await self._generate(prompts, ScriptedClient(verdicts=self.verdicts), sampling=sampling)
        assert sampling == _sampling(), f"it changed the sampling parameters to {sampling}"
        assert pickle.dumps(prompts) == before, "it changed the prompts"

    async def test_generation_that_is_cancelled_ends(self) -> None:
        """At once, with its requests ended and nothing left running."""
        client = ScriptedClient(stuck=True)
        await cancel_when(client.until_asked(), self._generate(self.prompts(), client), self.patience_s)
        assert client.under_way == 0, "it still asks"

    # --- shared by the tests ------------------------------------------------------------------

    def _rewards(self) -> tuple[NamedReward, ...]:
        return tuple(
            NamedReward(
                name=name,
                adapter=self._adapter(worth=1.0 + number),
                on_error="fail_batch",
                retries=0,
                timeout_s=30.0,
            )
            for number, name in enumerate(_REWARDS)
        )

    def _adapter(self, *, worth: float = 1.0, fails_on: str = "") -> _Asking:
        """Return an adapter that names this role."""
        naming = type("Asking", (_Asking,), {"role": self.plugin.name})
        return naming(_How(worth=worth, fails_on=fails_on))

    def _stages(self) -> Sequence[Stage]:
        return self.fresh().scoring_stages(self._request(self._rewards()))

    def _request(self, rewards: tuple[NamedReward, ...]) -> StageRequest:
        """Return a request of a job in which the role has a model, if it has engines at all."""
        models = dict(zip(["model"], self.plugin.weight_sources, strict=False))
        return StageRequest(rewards=rewards, route_keys=frozenset({"sums"}), models=models)

    def _stages_that_ask(self) -> list[Stage]:
        asking = [stage for stage in self._stages() if stage.role is not None]
        if not asking:
            pytest.skip("no stage of it asks a role")
        return asking

    def _reward_stages(self, rewards: tuple[NamedReward, ...]) -> list[Stage]:
        """Return the stages that compute rewards, with nothing but rewards in them; skip without."""
        wanted = {reward_field(reward.name) for reward in rewards}
        stages = self.fresh().scoring_stages(self._request(rewards))
        computing = [stage for stage in stages if stage.writes & wanted]
        if not computing:
            pytest.skip("no reward can name it")
        return computing

    def _scored_before(self, stage: Stage) -> list[Sample]:
        """Return the samples; a stage that reads another's fields needs ``samples`` that have them."""
        samples = self.samples()
        wanted = [name for name in stage.reads if not is_generated(name)]
        for sample in samples:
            missing = sorted(set(wanted) - sample.scores.keys())
            assert not missing, f'override samples(): stage "{stage.name}" reads their scores {missing}'
        return samples

    async def _run(
        self,
        stage: Stage,
        samples: Sequence[Sample],
        client: ScoringClient,
        *,
        max_concurrency: int = 4,
        progress: Progress = _unseen,
    ) -> Scores:
        context = StageContext(
            client=None if stage.role is None else client, max_concurrency=max_concurrency, progress=progress
        )
        return await stage.run(samples, context)

    async def _generate(
        self,
        prompts: Sequence[Prompt],
        client: ScoringClient,
        *,
        max_concurrency: int = 4,
        progress: Progress = _unseen,
        sampling: Mapping[str, Any] | None = None,
    ) -> Sequence[Sample]:
        generate = self.fresh().generation()
        if generate is None:
            pytest.skip("it generates nothing")
        context = GenerationContext(
            client=client,
            samples_per_prompt=3,
            sampling=_sampling() if sampling is None else sampling,
            max_concurrency=max_concurrency,
            progress=progress,
        )
        return await generate(prompts, context)

    async def _must_raise(self, run: Awaitable[Any], because: str, client: ScriptedClient) -> None:
        before = asyncio.all_tasks()
        try:
            answer = await run
        except Exception:  # noqa: BLE001 - whatever it raises fails the batch, with it as the cause
            assert client.under_way == 0, f"{because}; it raised and still asks"
            assert asyncio.all_tasks() <= before, f"{because}; it raised and left tasks behind"
            return
        pytest.fail(f"{because}, and it returned {answer!r:.200}")


_BROKEN = UpstreamError("the engine could not be reached")


def _sampling() -> dict[str, Any]:
    return {"max_new_tokens": 3, "temperature": 0.7, "sampling_seed": 7, "stop": ["x"]}


def _refusal(role: Role, payload: Mapping[str, Any]) -> PayloadError | None:
    try:
        role.adapt_generate(deepcopy(dict(payload)))
    except PayloadError as error:
        return error
    return None


def _root(name: str) -> str:
    return re.split(r"[.\[]", name)[0]


def _declared(stages: Iterable[Stage]) -> list[tuple[Any, ...]]:
    return [(stage.name, stage.role, stage.reads, stage.writes) for stage in stages]


def _writers_of(stages: Sequence[Stage]) -> list[Stage]:
    """Stages of other roles, which write what these read and do not write themselves."""

    async def never(samples: Sequence[Sample], context: StageContext) -> Scores:
        del samples, context
        raise AssertionError("it is only there to be ordered")

    written = {name for stage in stages for name in stage.writes}
    names = {name for stage in stages for name in stage.reads if not is_generated(name)} - written
    return [
        Stage(
            name=f"writer of {name}",
            role=None,
            reads=frozenset(),
            writes=frozenset({name}),
            run=never,
        )
        for name in sorted(names)
    ]


@define(kw_only=True)
class _How:
    """What an :class:`_Asking` is worth, and the sample that it fails on."""

    worth: float = 1.0
    fails_on: str = ""


class _Asking:
    """A reward adapter that asks the role, and fails on one sample if it is told to."""

    name: ClassVar[str] = "asking"
    api_version: ClassVar[int] = ROLECALL_API
    options: ClassVar[type[Any]] = _How
    supports_deferred: ClassVar[bool] = True
    role: ClassVar[str | None] = None
    reads: ClassVar[frozenset[str]] = frozenset({"response", "prompt.answer"})

    def __init__(self, options: _How) -> None:
        self._how = options
        self.failures = 0

    async def score(self, sample: Sample, client: ScoringClient | None) -> float:
        assert client is not None, "a stage that computes rewards of adapters with a role has a client"
        if sample.sample_id == self._how.fails_on:
            self.failures += 1
            raise ValueError("it fails on this sample")
        verdict = await client.chat([{"role": "user", "content": sample.response + sample.sample_id}])
        return self._how.worth * (1 + len(verdict)) + len(sample.response)


class _Mute(ScriptedClient):
    """Answers outside the protocol."""

    async def generate(self, payload: Mapping[str, Any], **selectors: Any) -> dict[str, Any]:
        await super().generate(payload, **selectors)
        return {}


@define
class _Progress:
    told: list[tuple[int, int]] = field(factory=list)

    def __call__(self, samples: int, tokens: int) -> None:
        self.told.append((samples, tokens))

    def check(self, samples: int, what: str) -> None:
        assert all(done >= 0 and tokens >= 0 for done, tokens in self.told), f"{what}: {self.told}"
        counted = sum(done for done, _ in self.told)
        assert counted == samples, f"{what} told of {counted} of {samples} samples"
