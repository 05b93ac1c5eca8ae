"""``rolecall plan`` from a job file on, with a distribution of stub plugins."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent, indent

import pytest
from click.testing import CliRunner, Result

from rolecall.cli.plan import plan

COMMON = """
from __future__ import annotations
from typing import Any
from attrs import frozen
from rolecall.api import Capability, EngineFeatures, WeightSource, hookimpl

@frozen(kw_only=True)
class Nothing:
    pass

class Stub:
    api_version = 1
    options = Nothing
    def __init__(self, *_: Any) -> None: ...
    def nothing(self, *_: Any) -> tuple[()]: return ()
"""

PLUGINS = {
    ("roles", "writer", "role"): """
        name = "writer"
        weight_sources = (WeightSource.STATIC,)
        deferrable = True
        adapt_generate = endpoints = generation = scoring_stages = Stub.nothing
        """,
    ("roles", "judge", "role"): """
        name = "judge"
        weight_sources = (WeightSource.STATIC,)
        deferrable = True
        adapt_generate = endpoints = generation = scoring_stages = Stub.nothing
        """,
    ("roles", "hermit", "role"): """
        name = "hermit"
        weight_sources = (WeightSource.STATIC,)
        deferrable = False
        adapt_generate = endpoints = generation = scoring_stages = Stub.nothing
        """,
    ("engine_backends", "sleeper", "engine_backend"): """
        name = "sleeper"
        resource = "slot"
        def features(self, options, *, static):
            return EngineFeatures(capabilities=frozenset({Capability.SLEEP}), memory_tags=frozenset())
        environment = create = Stub.nothing
        """,
    ("engine_backends", "sleepless", "engine_backend"): """
        name = "sleepless"
        resource = None
        def features(self, options, *, static):
            return EngineFeatures(
                capabilities=frozenset(), memory_tags=frozenset(), no_sleep_because="it never rests"
            )
        environment = create = Stub.nothing
        """,
    ("reward_adapters", "early", "reward_adapter"): """
        name = "early"
        supports_deferred = False
        role = None
        reads = frozenset({"response"})
        score = Stub.nothing
        """,
    ("batch_sinks", "void", "batch_sink"): """
        name = "void"
        open = put = read = clear = close = Stub.nothing
        """,
}  # fmt: skip


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an installed distribution of stub plugins."""
    site = tmp_path_factory.mktemp("site")
    groups: dict[str, list[str]] = {}
    (site / "plan_stubs.py").write_text(COMMON)
    for (group, name, hook), body in PLUGINS.items():
        module = f"plan_stub_{name}"
        (site / f"{module}.py").write_text(
            "from plan_stubs import *\n\nclass Plugin(Stub):\n"
            + indent(dedent(body).strip(), "    ")
            + f"\n\n@hookimpl\ndef rolecall_{hook}():\n    return Plugin\n"
        )
        groups.setdefault(group, []).append(f"{name} = {module}")
    info = site / "plan_stubs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plan-stubs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "".join(f"[rolecall.{group}]\n" + "\n".join(lines) + "\n" for group, lines in groups.items())
    )
    return site


@pytest.fixture(autouse=True)
def stubs_installed(stubs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(stubs))
    yield
    for module in [name for name in sys.modules if name.startswith("plan_stub")]:
        del sys.modules[module]


JOB = """
[job]
name = "job"

[placement]
mode = "defer"
resource = "slot"
devices = 2
devices_per_node = 2

[roles.writer.models.policy]
source = "/models/policy"
engine = "sleeper"
replicas = 2

[roles.judge.models.verdict]
source = "/models/verdict"
engine = "sleeper"
devices_per_engine = 2

[sink]
name = "void"
"""


def run(tmp_path: Path, job: str, *options: str) -> Result:
    file = tmp_path / "job.toml"
    file.write_text(job)
    return CliRunner().invoke(plan, [str(file), *options], catch_exceptions=False)


def test_the_map_is_printed(tmp_path: Path) -> None:
    result = run(tmp_path, JOB)
    assert result.exit_code == 0
    assert result.stderr == ""
    assert result.stdout.startswith("defer · 2 slot in 1 pool · 2 phases, one at a time\n")
    assert dedent("""\
        bundle  0 1
            writer  W W
            judge   V─V
        """).replace("V", "J") in result.stdout  # fmt: skip


def test_json_is_the_plan(tmp_path: Path) -> None:
    result = run(tmp_path, JOB, "--json")
    assert result.exit_code == 0
    parsed = json.loads(result.stdout)
    assert parsed["schema_version"] == 2
    assert [replica["bundles"] for replica in parsed["replicas"]] == [[0], [1], [0, 1]]
    assert parsed["conflicts"] == {"writer": ["judge"], "judge": ["writer"]}


WRONG = JOB.replace('engine = "sleeper"\ndevices_per_engine = 2', 'engine = "sleepless"\ntensor_parallel = 2')
WRONG = WRONG.replace("[roles.judge.", "[roles.hermit.") + '\n[rewards.r]\nadapter = "early"\n'


def test_everything_that_keeps_a_job_from_being_placed_is_shown_with_exit_code_2(tmp_path: Path) -> None:
    result = run(tmp_path, WRONG)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "job.toml: this job can't be placed, for 4 reasons:" in result.stderr
    for code, key in {
        "parallel-product": "roles.hermit.models.verdict.devices_per_engine",
        "role-not-deferrable": "placement.mode",
        "engine-cannot-sleep": "roles.hermit.models.verdict.engine",
        "reward-not-deferred": "rewards.r.adapter",
    }.items():
        assert f"  {key}  [{code}]\n" in result.stderr
    assert result.stderr.count("  fix: ") == 4


def test_refusals_as_json_go_where_the_plan_would_have_gone(tmp_path: Path) -> None:
    result = run(tmp_path, WRONG, "--json")
    assert result.exit_code == 2
    refusals = json.loads(result.stdout)["refusals"]
    assert len(refusals) == 4
    assert all(set(refusal) == {"code", "key", "message", "fix", "fixes"} for refusal in refusals)


MISSPELT = JOB.replace("devices_per_node = 2", "devices_per_nod = 2").replace('name = "void"', 'nme = "void"')


def test_problems_of_the_file_are_all_shown_with_exit_code_2(tmp_path: Path) -> None:
    result = run(tmp_path, MISSPELT)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "devices_per_nod" in result.stderr
    assert "sink" in result.stderr


def test_problems_of_the_file_as_json(tmp_path: Path) -> None:
    result = run(tmp_path, MISSPELT, "--json")
    assert result.exit_code == 2
    problems = json.loads(result.stdout)["problems"]
    assert {problem["file"].rsplit("/", 1)[-1] for problem in problems} == {"job.toml"}
    assert any("devices_per_nod" in problem["key"] for problem in problems)
    assert all(set(problem) == {"file", "line", "key", "message"} for problem in problems)


def test_a_file_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    result = CliRunner().invoke(plan, [str(tmp_path / "nowhere.toml")])
    assert result.exit_code == 2
    assert "nowhere.toml" in result.stderr


def test_planning_imports_no_ray(tmp_path: Path, stubs: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(JOB)
    code = f"""
import sys
sys.path.insert(0, {str(stubs)!r})
from rolecall.cli.plan import plan
plan.main([{str(file)!r}], standalone_mode=False)
print("heavy:", sorted({{"ray", "torch", "xllamacpp"}} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert "writer  W W" in done.stdout
    assert done.stdout.rstrip().endswith("heavy: []")
