"""The stage, the reward and the endpoint."""

from __future__ import annotations

from typing import Any, ClassVar

import httpx
import pytest
from attrs import evolve, field, frozen
from rolecall_verifier.extract import program_in
from rolecall_verifier.options import VerifierOptions
from rolecall_verifier.reward import Verified, VerifiedOptions
from rolecall_verifier.role import Verifier

from rolecall.api import Prompt, Sample, Scores, ScoringError, StageContext, StageRequest
from rolecall.testing.plane import plane

RIGHT = "Here:\n```python\ndef add(a, b):\n    return a + b\n```\nDone."
WRONG = "```\ndef add(a, b):\n    return 5\n```"
TESTS = ["assert add(2, 3) == 5", "assert add(-1, 1) == 0"]


def sample(number: int, response: str, tests: Any = TESTS) -> Sample:
    return Sample(
        sample_id=f"p/{number}",
        group_id="p",
        prompt=Prompt(prompt_id="p", text="Write add.", metadata={"tests": tests}),
        prompt_ids=(1, 2),
        response=response,
        response_ids=(3,) * (number + 1),
        rollout_log_probs=(-0.5,) * (number + 1),
        finish_reason="stop",
        weight_version=None,
    )


async def scores(*samples: Sample, **options: Any) -> tuple[Scores, list[tuple[int, int]]]:
    (stage,) = Verifier(VerifierOptions(**options)).scoring_stages(StageRequest())
    told: list[tuple[int, int]] = []
    context = StageContext(client=None, max_concurrency=4, progress=lambda *done: told.append(done))
    return await stage.run(samples, context), told


async def test_the_stage_tells_each_program_s_share_and_outcome() -> None:
    found, told = await scores(
        *(sample(number, text) for number, text in enumerate((RIGHT, WRONG, "no code", "```\n1 / 0\n```")))
    )
    assert found == {
        "p/0": {"verifier_share": 1.0, "verifier_outcome": "passed"},
        "p/1": {"verifier_share": 0.5, "verifier_outcome": "failed"},
        "p/2": {"verifier_share": 0.0, "verifier_outcome": "no_code"},
        "p/3": {"verifier_share": 0.0, "verifier_outcome": "error"},
    }
    assert sorted(told) == [(1, 1), (1, 2), (1, 3), (1, 4)]


@pytest.mark.parametrize("tests", [None, [], "", [""], [1], 7])
async def test_a_prompt_without_tests_fails_the_batch(tests: Any) -> None:
    with pytest.raises(ScoringError, match=r'prompt "p": metadata\.tests (must be|has a test)'):
        await scores(sample(0, RIGHT, tests))


async def test_the_tests_may_be_the_answer() -> None:
    asked = sample(0, RIGHT, None)
    asked = evolve(asked, prompt=evolve(asked.prompt, answer=TESTS[0]))
    found, _ = await scores(asked, tests="answer")
    assert found == {"p/0": {"verifier_share": 1.0, "verifier_outcome": "passed"}}


@pytest.mark.parametrize("where", ["", "metadata", "metadata.", "tests", "text"])
def test_tests_are_the_answer_or_in_the_metadata(where: str) -> None:
    with pytest.raises(ValueError, match=r'tests must be "answer" or "metadata\.<key>"'):
        VerifierOptions(tests=where)


@pytest.mark.parametrize(
    ("response", "program"),
    [
        ("```python\nx = 1\n```", "x = 1\n"),
        ("```py\nx = 1\n```\nor\n```\nx = 2\n```", "x = 2\n"),
        ("  ```python3\n  x = 1\n  ```", "  x = 1\n"),
        ("```python\ncut = 'off", "cut = 'off"),
        ("```\n\n```", "\n"),
        ("Use `x = 1`.", None),
        ("", None),
    ],
)
def test_the_program_is_the_last_fenced_block(response: str, program: str | None) -> None:
    assert program_in(response) == program


@pytest.mark.parametrize(
    ("share", "partial", "reward"), [(1.0, False, 1.0), (0.5, False, 0.0), (0.5, True, 0.5), (0.0, True, 0.0)]
)
async def test_the_reward_pays_what_the_stage_wrote(share: float, partial: bool, reward: float) -> None:
    scored = evolve(sample(0, RIGHT), scores={"verifier_share": share})
    assert await Verified(VerifiedOptions(partial=partial)).score(scored, None) == reward


async def test_without_the_stage_there_is_no_reward() -> None:
    with pytest.raises(ScoringError, match="the verifier wrote no verifier_share"):
        await Verified(VerifiedOptions()).score(sample(0, RIGHT), None)


# --- POST /verify -------------------------------------------------------------------------


class First:
    name: ClassVar[str] = "first"
    api_version: ClassVar[int] = 1
    needs: ClassVar[frozenset[Any]] = frozenset()
    router: ClassVar[None] = None

    def select(self, *_: Any) -> Any:
        raise AssertionError("there is nothing to choose from")


@frozen(kw_only=True)
class Served:
    name: Any = "verifier"
    plugin: Any = field(factory=lambda: Verifier(VerifierOptions()))
    policy: Any = First


async def post(body: Any, path: str = "/verify") -> httpx.Response:
    async with plane(Served()) as running, httpx.AsyncClient(base_url=running.url, timeout=30) as http:
        if isinstance(body, bytes):
            return await http.post(path, content=body)
        return await http.post(path, json=body)


async def test_a_program_is_run_by_the_gateway() -> None:
    answer = (await post({"response": WRONG, "tests": TESTS})).json()
    assert (answer["outcome"], answer["passed"], answer["tests"]) == ("failed", 1, 2)
    assert answer["failures"] == [{"test": 1, "raised": "AssertionError"}]
    printed = (await post({"program": "print('hello')", "tests": "pass"})).json()
    assert (printed["outcome"], printed["output"], printed["truncated"]) == ("passed", "hello\n", False)
    assert (await post({"response": "no code", "tests": TESTS})).json()["outcome"] == "no_code"


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        (b"{", 400, "body"),
        ([], 400, "body"),
        ({"tests": TESTS}, 400, "program"),
        ({"program": "a", "response": "b", "tests": TESTS}, 400, "program"),
        ({"program": 7, "tests": TESTS}, 400, "program"),
        ({"program": "a"}, 400, "tests"),
        ({"program": "a", "tests": []}, 400, "tests"),
        ({"program": "a", "tests": TESTS, "timeout": 5}, 400, "timeout"),
        (b" " * (1024**2 + 1), 413, None),
    ],
)
async def test_a_wrong_body_is_refused_by_its_field(body: Any, status: int, field: str | None) -> None:
    answer = await post(body)
    assert answer.status_code == status
    assert answer.json()["error"].get("field") == field


async def test_there_is_nothing_to_generate_with() -> None:
    answer = await post({"text": "Write add."}, "/generate")
    assert answer.status_code == 400
    assert "POST /verify" in answer.json()["error"]["message"]
