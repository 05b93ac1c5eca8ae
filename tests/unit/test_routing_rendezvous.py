"""Rendezvous: every key has one home, and only the keys of a lost or new replica move."""

from __future__ import annotations

import doctest
import os
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolecall.api import Candidate, EngineId, rendezvous
from rolecall.routing import rendezvous as module

fleets = st.sets(st.text(min_size=1, max_size=12), min_size=2, max_size=12)
keys = st.text(max_size=20)


def candidates(ids: set[str] | list[str]) -> list[Candidate]:
    return [
        Candidate(engine_id=EngineId(id), base_url=f"http://{n}", generation=n) for n, id in enumerate(ids)
    ]


def home(key: str, ids: set[str] | list[str]) -> str:
    return rendezvous(key, candidates(ids)).engine_id


@settings(max_examples=25)
@given(keys, fleets)
def test_order_urls_and_generations_do_not_matter(key: str, fleet: set[str]) -> None:
    assert home(key, sorted(fleet)) == home(key, sorted(fleet, reverse=True))


@settings(max_examples=25)
@given(st.lists(keys, max_size=20), fleets, st.data())
def test_losing_a_replica_moves_only_its_keys(some: list[str], fleet: set[str], data: st.DataObject) -> None:
    lost = data.draw(st.sampled_from(sorted(fleet)))
    for key in some:
        before = home(key, fleet)
        after = home(key, fleet - {lost})
        assert after == before or before == lost


@settings(max_examples=25)
@given(st.lists(keys, max_size=20), fleets, st.text(min_size=1, max_size=12))
def test_a_new_replica_takes_keys_only_for_itself(some: list[str], fleet: set[str], new: str) -> None:
    for key in some:
        assert home(key, fleet | {new}) in {home(key, fleet), new}


@pytest.mark.parametrize("size", [2, 3, 8])
def test_keys_are_spread_evenly(size: int) -> None:
    fleet = [f"m/replica-{n}" for n in range(size)]
    keys = 3000
    counts = Counter(home(f"group-{n}", fleet) for n in range(keys))
    fair = keys / size
    assert all(abs(counts[id] - fair) < 0.15 * fair for id in fleet), counts


def test_a_key_and_an_id_do_not_run_into_each_other() -> None:
    fleet = [f"{n}" for n in range(50)]
    assert home("a", [f"b{id}" for id in fleet]) != "b" + home("ab", fleet)


def test_any_text_is_a_key() -> None:
    assert home("\ud800", ["a", "b"]) in {"a", "b"}


def test_every_process_agrees() -> None:
    code = (
        "from rolecall.api import Candidate, rendezvous\n"
        "fleet = [Candidate(engine_id=f'm/replica-{n}', base_url='http://h', generation=1)"
        " for n in range(8)]\n"
        "print([rendezvous(f'key-{n}', fleet).engine_id for n in range(20)])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1",)
    }
    fleet = [f"m/replica-{n}" for n in range(8)]
    assert outputs == {f"{[home(f'key-{n}', fleet) for n in range(20)]}\n"}


def test_no_candidate_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        rendezvous("key", [])


def test_its_example_runs() -> None:
    assert doctest.testmod(module).failed == 0
