"""weighted: what the parts are worth together, what follows from them, and that an error of one is one of
all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

import pytest
from attrs import evolve, frozen

from rolecall.api import RewardAdapter, ScoringError, UpstreamError, make_reward_adapter
from rolecall.config.loader import load_config
from rolecall.config.resolve import job_plugins, resolve_job
from rolecall.errors import ConfigError, UnknownPluginError
from rolecall.testing.samples import make_samples
from rolecall.testing.scripted_client import ScriptedClient
from rolecall_plugins.rewards import weighted
from rolecall_plugins.rewards.weighted import Part, Weighted, WeightedOptions

RIGHT, WORDY, WRONG, _ = make_samples()[:4]
EXACT = Part(adapter="exact_match", weight=3.0, options={"where": "whole"})
ANYWHERE = Part(adapter="exact_match", options={"where": "anywhere"})
JUDGE = Part(adapter="genrm_judge", options={"model": "m"})


def adapter(*parts: Part, **options: Any) -> Weighted:
    return Weighted(WeightedOptions(parts=parts, **options))


async def test_a_mean_and_a_sum_of_what_the_parts_give() -> None:
    mean = adapter(EXACT, ANYWHERE)
    assert [await mean.score(one, None) for one in (RIGHT, WORDY, WRONG)] == [1.0, 0.25, 0.0]
    penalty = adapter(EXACT, evolve(ANYWHERE, weight=-0.5), combine="sum")
    assert [await penalty.score(one, None) for one in (RIGHT, WORDY, WRONG)] == [2.5, -0.5, 0.0]


def test_role_reads_and_deferral_follow_from_the_parts() -> None:
    rules, judged = adapter(EXACT), adapter(EXACT, JUDGE)
    assert (rules.role, judged.role) == (None, "genrm")
    assert judged.reads == {"response", "prompt.answer", "prompt.text"}
    assert judged.supports_deferred


class Parts:
    """Adapters by name, in the place of installed ones."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: dict[str, type[Any]] = {}
        monkeypatch.setattr(weighted, "make_reward_adapter", self.make)

    def make(self, name: str, options: Any) -> RewardAdapter:
        return self.made[name](options) if name in self.made else make_reward_adapter(name, options)

    def add(
        self, name: str, outcome: Any, *, role: str | None = None, supports_deferred: bool = True
    ) -> Part:
        asked, deferred = role, supports_deferred

        class Other:
            supports_deferred = deferred
            role = asked
            reads: ClassVar = frozenset({"response"})
            clients: ClassVar[list[Any]] = []

            def __init__(self, options: Any) -> None:
                del options

            async def score(self, sample: Any, client: Any) -> Any:
                self.clients.append(client)
                if isinstance(outcome, Exception):
                    raise outcome
                return outcome

        self.made[name] = Other
        return Part(adapter=name)


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Parts:
    return Parts(monkeypatch)


async def test_only_the_part_with_a_role_gets_the_client(parts: Parts) -> None:
    rule, judge = parts.add("rule", 1.0), parts.add("judge", 0.0, role="genrm")
    client = ScriptedClient()
    assert await adapter(rule, judge).score(RIGHT, client) == 0.5
    assert parts.made["rule"].clients == [None]
    assert parts.made["judge"].clients == [client]


def test_one_part_that_can_not_be_deferred_makes_the_whole_so(parts: Parts) -> None:
    assert not adapter(EXACT, parts.add("early", 1.0, supports_deferred=False)).supports_deferred


@pytest.mark.parametrize("place", [0, 1])
async def test_an_error_of_one_part_is_an_error_of_all(parts: Parts, place: int) -> None:
    error = UpstreamError("the judge died")
    both = [EXACT, EXACT]
    both[place] = parts.add("dies", error)
    with pytest.raises(UpstreamError, match="the judge died") as raised:
        await adapter(*both).score(RIGHT, None)
    assert raised.value.__notes__ == ["raised by the part dies of weighted"]


@pytest.mark.parametrize("outcome", [float("nan"), float("inf"), None, True, "1"])
async def test_a_part_that_gives_no_number_is_an_error_whatever_its_weight(
    parts: Parts, outcome: Any
) -> None:
    part = evolve(parts.add("odd", outcome), weight=1e-9)
    with pytest.raises(ScoringError, match="the part odd returned"):
        await adapter(EXACT, part).score(RIGHT, None)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (adapter, "parts is empty"),
        (lambda: adapter(evolve(EXACT, weight=0.0)), "weight must be a finite number other than 0"),
        (lambda: adapter(evolve(EXACT, weight=-1.0)), "the weights add up to -1"),
        (lambda: adapter(Part(adapter="exat_match")), r'parts\[0\]: .*did you mean "exact_match"'),
        (
            lambda: adapter(EXACT, Part(adapter="exact_match", options={"wher": "whole"})),
            r"parts\[1\]: options.wher is not a known key; did you mean",
        ),
    ],
)
def test_parts_that_can_not_be_are_refused(made: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made()


def test_two_roles_are_refused(parts: Parts) -> None:
    with pytest.raises(ValueError, match="ask several roles, genrm, teacher"):
        adapter(JUDGE, parts.add("other", 1.0, role="teacher"))


def test_weighted_may_hold_weighted() -> None:
    inner = {"parts": [{"adapter": "genrm_judge"}]}
    assert (
        make_reward_adapter("weighted", {"parts": [{"adapter": "weighted", "options": inner}]}).role
        == "genrm"
    )


@frozen
class Job:
    """A copy of the quickstart whose rewards are others."""

    folder: Path

    def resolve(self, rewards: str, *, block: str = "[]") -> Any:
        text = (Path(__file__).parents[2] / "examples" / "quickstart.toml").read_text(encoding="utf-8")
        kept = re.sub(r"^\[rewards\..*?(?=^\[(?!rewards)|\Z)", "", text, flags=re.DOTALL | re.MULTILINE)
        prompts = Path(__file__).parents[2] / "examples" / "prompts" / "arithmetic.jsonl"
        kept = kept.replace('"prompts/arithmetic.jsonl"', f'"{prompts}"')
        file = self.folder / "job.toml"
        file.write_text(f"{kept}\n{rewards}\n[plugins]\nblock = {block}\n", encoding="utf-8")
        config = load_config(file)
        return resolve_job(config, file, job_plugins(config.plugins))


MIXED = """
[rewards.mixed]
adapter = "weighted"
[rewards.mixed.options]
parts = [
    { adapter = "exact_match", weight = 2.0, options = { where = "last_number" } },
    { adapter = "genrm_judge" },
]
"""


def test_a_job_file_gives_the_parts_and_the_role_is_theirs(tmp_path: Path) -> None:
    (reward,) = Job(tmp_path).resolve(MIXED).rewards
    assert reward.adapter.role == "genrm"


def test_what_is_wrong_with_a_part_is_told_with_the_file_s_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        Job(tmp_path).resolve(MIXED.replace('"last_number"', '"middle"'))
    (problem,) = refused.value.problems
    assert problem.key == "rewards.mixed.options.parts"
    assert problem.line is not None
    assert "parts[0]: options.where must be one of" in problem.message


def test_the_job_s_block_list_holds_for_parts_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"parts\[0\]: .*installed but blocked"):
        Job(tmp_path).resolve(MIXED, block='["reward_adapter/exact_match"]')
    with pytest.raises(UnknownPluginError):
        make_reward_adapter("nobody", {})
