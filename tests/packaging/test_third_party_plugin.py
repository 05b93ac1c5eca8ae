"""A third party's distribution can be selected in a job without a change anywhere in rolecall."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.packaging, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
EXAMPLE = "rolecall-rewards"
FORMAT_REWARD = r"""
[rewards.format]
adapter = "format_reward"

[rewards.format.options]
pattern = '\d'
reward = 0.25
penalty = -0.25
"""
SMALL = {"batches": 1, "prompts_per_batch": 2, "samples_per_prompt": 2}


@pytest.fixture(scope="module")
def job_file(installation: Any) -> Path:
    """The quickstart, made small, with the third party's reward selected by name."""
    examples = installation.folder / "examples"
    shutil.copytree(ROOT / "examples", examples)
    file = examples / "quickstart.toml"
    text = file.read_text(encoding="utf-8")
    for key, value in SMALL.items():
        text, replaced = re.subn(rf"(?m)^{key} *= *\d+", f"{key} = {value}", text)
        assert replaced == 1, key
    file.write_text(text + FORMAT_REWARD, encoding="utf-8")
    return file


@pytest.fixture
def uninstalled(installation: Any, example_wheels: Mapping[str, Path]) -> Iterator[None]:
    with installation.uninstalled(example_wheels[EXAMPLE]):
        yield


def test_a_job_that_selects_it_can_be_planned(installation: Any, job_file: Path) -> None:
    plan = json.loads(installation.run("rolecall", "plan", "--json", str(job_file)))
    assert "refusals" not in plan
    assert "problems" not in plan


def test_a_wrong_option_of_it_is_told_with_its_key(installation: Any, job_file: Path) -> None:
    wrong = job_file.with_name("wrong.toml")
    wrong.write_text(job_file.read_text(encoding="utf-8").replace(r"'\d'", "'('"), encoding="utf-8")
    said = installation.run("rolecall", "plan", str(wrong), code=2)
    assert "rewards.format.options" in said
    assert "no regular expression" in said


def test_without_it_the_name_is_unknown(installation: Any, job_file: Path, uninstalled: None) -> None:
    said = " ".join(installation.run("rolecall", "run", str(job_file), code=2).split())
    assert "rewards.format.adapter" in said
    assert 'reward adapter "format_reward" is not installed' in said
    assert "Installed: code_tests, exact_match, genrm_judge" in said
    assert "rolecall plugins list" in said
