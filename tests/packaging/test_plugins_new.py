"""What ``rolecall plugins new`` writes, with no edit: it installs, passes its own tests, can be selected."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from rolecall.plugins.kinds import PluginKind
from rolecall.scaffold.names import as_argument

pytestmark = [pytest.mark.packaging, pytest.mark.timeout(900)]

NAMES = {kind: f"new_{kind.name.lower()}" for kind in PluginKind}
JOB = """
[job]
name = "scaffolds"
observers = ["new_observer"]
[placement]
mode = "new_placement_mode"
resource = "device_slot"
devices_per_node = 2
[roles.rollout]
routing_policy = "new_routing_policy"
[roles.rollout.models.policy]
source = "text.txt"
engine = "new_engine_backend"
engine_options = { smoothing = 0.01 }
[roles.new_role.models.reader]
source = "text.txt"
engine = "new_engine_backend"
[rewards.short]
adapter = "new_reward_adapter"
options = { enough_tokens = 16, most_tokens = 32 }
[batch]
prompts = "prompts.jsonl"
batches = 1
prompts_per_batch = 1
samples_per_prompt = 1
[sink]
name = "new_batch_sink"
"""


@frozen(kw_only=True)
class Written:
    """The environment in which they were written and installed, and each one's folder."""

    place: Any
    projects: Mapping[PluginKind, Path]


@pytest.fixture(scope="module")
def written(
    installation: Any, build_wheels: Callable[[Iterable[Path]], tuple[Path, ...]]
) -> Iterator[Written]:
    folder = installation.folder / "new"
    projects = {kind: folder / name for kind, name in NAMES.items()}
    for kind, name in NAMES.items():
        installation.run("rolecall", "plugins", "new", as_argument(kind), name, "--to", str(projects[kind]))
    with installation.installed(*build_wheels(projects.values())):
        yield Written(place=installation, projects=projects)


def test_each_passes_its_own_tests(written: Written, tmp_path: Path) -> None:
    for kind, project in written.projects.items():
        shutil.copytree(project / "tests", tmp_path / kind.name)
    settings = next(iter(written.projects.values())) / "pyproject.toml"
    command = ("python", "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "-c", str(settings))
    said = written.place.run(*command, "--rootdir", str(tmp_path), str(tmp_path))
    passed = {kind for kind in PluginKind if re.search(rf"^PASSED \S*\b{kind.name}/", said, re.MULTILINE)}
    assert passed == set(PluginKind)


def test_each_is_listed_and_sound(written: Written) -> None:
    listed = json.loads(written.place.run("rolecall", "plugins", "list", "--json"))
    found = {(plugin["kind"], plugin["name"], plugin["state"]) for plugin in listed}
    assert {(kind.label, name, "installed") for kind, name in NAMES.items()} <= found
    checked = written.place.run("rolecall", "plugins", "check")
    assert "broken" not in checked
    assert all(name in checked for name in NAMES.values())


def test_a_job_that_selects_all_of_them_can_be_planned(written: Written) -> None:
    folder = written.place.folder / "scaffolds"
    folder.mkdir()
    (folder / "job.toml").write_text(JOB, encoding="utf-8")
    (folder / "prompts.jsonl").write_text('{"prompt": "What is 1 + 1?"}\n', encoding="utf-8")
    plan = json.loads(written.place.run("rolecall", "plan", "--json", str(folder / "job.toml")))
    assert plan["mode"] == "new_placement_mode"
    assert {replica["role"] for replica in plan["replicas"]} == {"rollout", "new_role"}


def test_a_second_one_of_the_same_name_is_refused(written: Written) -> None:
    command = ("rolecall", "plugins", "new", "observer", "new_observer")
    said = written.place.run(*command, code=1)
    assert 'observer "new_observer" is installed already' in said
