"""Which prompts a batch takes: a pure function of its number, also when shuffled; what a resume checks."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from rolecall.batches.prompts_order import PromptSource, pick_prompts, shuffled
from rolecall.batches.sample import Prompt
from rolecall.errors import JobError
from rolecall.ids import BatchId
from rolecall.job.prompts_point import check_prompts_point, keep_prompts_point, prompts_point_path

PROMPTS = tuple(Prompt(prompt_id=name, text=name * 2) for name in "abcdefg")
SOURCE = PromptSource(prompts=PROMPTS, per_batch=3, shuffle_seed=7)


@given(seed=st.integers(), count=st.integers(1, 40), per_batch=st.integers(1, 17), epochs=st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_every_epoch_has_each_prompt_once_and_no_id_comes_twice(
    seed: int, count: int, per_batch: int, epochs: int
) -> None:
    prompts = [Prompt(prompt_id=f"p{number}", text="x") for number in range(count)]
    taken = [
        prompt.prompt_id
        for batch in range(-(-count * epochs // per_batch))
        for prompt in pick_prompts(prompts, BatchId(batch), per_batch, seed)
    ]
    assert len(set(taken)) == len(taken)
    for epoch in range(epochs):
        names = Counter(name.partition("#")[0] for name in taken[epoch * count : (epoch + 1) * count])
        assert names == Counter(prompt.prompt_id for prompt in prompts)


def test_seeds_and_epochs_have_orders_of_their_own() -> None:
    orders = {shuffled(seed, epoch, 50) for seed in range(4) for epoch in range(4)}
    assert len(orders) == 16


def test_any_batch_alone_is_what_it_is_in_the_row_in_another_process_too() -> None:
    """What a resumed run relies on."""
    row = [[prompt.prompt_id for prompt in SOURCE.of_batch(BatchId(batch))] for batch in range(6)]
    program = (
        "from rolecall.batches.prompts_order import shuffled, pick_prompts\n"
        "from rolecall.batches.sample import Prompt\n"
        "prompts = [Prompt(prompt_id=n, text=n * 2) for n in 'abcdefg']\n"
        "print([p.prompt_id for p in pick_prompts(prompts, 5, 3, 7)])"
    )
    there = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env=OTHER,
    )
    assert there.stdout.strip() == str(row[5])
    # Written down, since a run may be resumed by a later version.
    assert shuffled(7, 0, 7) == EXPECTED


OTHER = {"PYTHONHASHSEED": "3"}
EXPECTED = (5, 6, 0, 1, 2, 3, 4)


def test_a_resumed_run_with_the_same_prompts_goes_on(tmp_path: Path) -> None:
    journal = tmp_path / "state" / "job.journal"
    keep_prompts_point(journal, SOURCE)
    check_prompts_point(journal, evolve(SOURCE, prompts=tuple(PROMPTS)))


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (evolve(SOURCE, prompts=PROMPTS[:-1]), r"the number of prompts \(7 → 6\), the prompts themselves"),
        (evolve(SOURCE, prompts=PROMPTS[::-1]), r"changed: the prompts themselves \(another digest\)\."),
        (
            evolve(SOURCE, prompts=(*PROMPTS[:-1], evolve(PROMPTS[-1], answer="4"))),
            r"changed: the prompts themselves",
        ),
        (evolve(SOURCE, per_batch=4), r"batch.prompts_per_batch \(3 → 4\)"),
        (evolve(SOURCE, shuffle_seed=None), r"batch.shuffle_seed \(7 → None\)"),
    ],
)
def test_a_resumed_run_with_other_prompts_is_refused(
    tmp_path: Path, changed: PromptSource, told: str
) -> None:
    journal = tmp_path / "job.journal"
    keep_prompts_point(journal, SOURCE)
    with pytest.raises(JobError, match=told):
        check_prompts_point(journal, changed)
    prompts_point_path(journal).unlink()
    check_prompts_point(journal, changed)


def test_what_can_t_be_read_is_no_reason_to_go_on(tmp_path: Path) -> None:
    journal = tmp_path / "job.journal"
    prompts_point_path(journal).write_text("{torn")
    with pytest.raises(JobError, match="can't be read"):
        check_prompts_point(journal, SOURCE)
    prompts_point_path(journal).write_text("[]")
    with pytest.raises(JobError, match="other prompts"):
        check_prompts_point(journal, SOURCE)
