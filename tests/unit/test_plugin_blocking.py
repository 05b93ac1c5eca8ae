"""Block lists: what counts as not installed, in the words of the refusal, in every process of a job."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from rolecall.config.loader import load_config
from rolecall.config.resolve import job_plugins
from rolecall.errors import DuplicatePluginError, UnknownPluginError
from rolecall.job.prepare import resolve_file
from rolecall.plugins.blocking import BLOCK_VARIABLE
from rolecall.plugins.host import PluginHost
from rolecall.plugins.installed import PluginState
from rolecall.plugins.kinds import PluginKind

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.toml"


@pytest.fixture
def two_pagers(fake_site):
    for owner in ("acme", "zeta-tools"):
        module = f"{owner.split('-')[0]}_pager"
        fake_site.install(
            owner, entry_points={"rolecall.observers": {"pager": module}}, modules={module: fake_site.PAGER}
        )


def host(*block: str) -> PluginHost:
    return PluginHost.from_environment(block=block)


def states(found: PluginHost) -> dict[str, PluginState]:
    return {plugin.distribution: plugin.state for plugin in found.list() if plugin.name == "pager"}


def test_a_distribution_that_is_blocked_settles_a_name_claimed_twice(two_pagers):
    with pytest.raises(DuplicatePluginError, match=r"plugins\.block"):
        host().load(PluginKind.OBSERVER, "pager")
    settled = host("acme")
    assert settled.load(PluginKind.OBSERVER, "pager").__module__ == "zeta_pager"
    assert states(settled) == {"acme": PluginState.BLOCKED, "zeta-tools": PluginState.INSTALLED}
    assert "acme_pager" not in sys.modules


def test_one_claim_can_be_blocked_by_itself(two_pagers):
    with pytest.raises(DuplicatePluginError, match=r'block the others, .* = \["zeta-tools/observer'):
        host().load(PluginKind.OBSERVER, "pager")
    settled = host("zeta-tools/observer/pager")
    assert settled.find(PluginKind.OBSERVER, "pager").distribution == "acme"
    assert states(host("zeta-tools/observer/other"))["zeta-tools"] is PluginState.DUPLICATE


def test_a_distribution_is_named_as_package_indexes_compare_names(two_pagers):
    assert states(host("Zeta_Tools"))["zeta-tools"] is PluginState.BLOCKED


def test_a_blocked_name_is_not_installed_and_the_message_says_by_what(two_pagers):
    blocked = host("observer/pager")
    assert "pager" not in blocked.names(PluginKind.OBSERVER)
    assert "pager" not in [result.plugin.name for result in blocked.check()]
    with pytest.raises(UnknownPluginError) as caught:
        blocked.find(PluginKind.OBSERVER, "pager")
    message = str(caught.value)
    assert 'observer "pager" is installed but blocked: acme 1.0 (acme_pager) by "observer/pager"' in message
    assert "Not blocked: console_log" in message
    assert "zeta-tools 1.0" in message
    assert "plugins.block in the job file, rolecall --block" in message


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("acmee", 'did you mean "acme"?'),
        ("observer/pagerr", 'did you mean "observer/pager"?'),
        ("acme/observer/pagerr", 'did you mean "acme/observer/pager"?'),
        ("acme/observers/pager", '"acme/observers/pager" names no kind of plugin; did you mean "observer"?'),
        ("observers/pager", '"observers/pager" names no kind of plugin; did you mean "observer"?'),
        ("", '"" blocks nothing'),
    ],
)
def test_an_entry_that_blocks_nothing_is_told_with_the_nearest(two_pagers, entry, words):
    ((number, message),) = host("acme", entry).block_faults()
    assert number == 1
    assert words in message


@pytest.fixture
def job_file(tmp_path):
    def write(block: str) -> Path:
        file = tmp_path / "job.toml"
        prompts = f'prompts = "{QUICKSTART.parent}/prompts/'
        text = QUICKSTART.read_text(encoding="utf-8").replace('prompts = "prompts/', prompts)
        file.write_text(f"{text}\n[plugins]\nblock = {block}\n", encoding="utf-8")
        return file

    return write


def plan(file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rolecall.cli", *options, "plan", "--json", str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_the_job_file_and_the_command_line_block_together(job_file):
    said = plan(job_file('["reward_adapter/exact_match"]'), "--block", "batch_sink/jsonl")
    problems = {problem["key"]: problem["message"] for problem in json.loads(said.stdout)["problems"]}
    assert said.returncode == 2
    assert 'reward adapter "exact_match" is installed but blocked' in problems["rewards.exact.adapter"]
    assert 'batch sink "jsonl" is installed but blocked' in problems["sink.name"]


def test_blocking_what_a_job_does_not_select_changes_nothing(job_file):
    assert plan(job_file('["engine_backend/sglang", "observer/console_log"]')).returncode == 0


def test_a_misspelt_entry_is_told_with_its_key(job_file):
    said = plan(job_file('["reward_adapter/exact_match", "obsever/pager"]'))
    assert "plugins.block[1]" in {problem["key"] for problem in json.loads(said.stdout)["problems"]}


def test_a_misspelt_entry_of_the_command_line_is_told_as_such(job_file):
    said = plan(job_file("[]"), "--block", "obsever/console_log")
    assert said.returncode == 1
    assert f'--block or {BLOCK_VARIABLE}: "obsever/console_log" names no kind' in said.stderr


def test_lines_of_the_file_are_told_beside_a_list_of_the_command_line(job_file):
    file = job_file('["engine_backend/sglang"]')
    said = plan(file, "--block", "batch_sink/jsonl")
    (problem,) = json.loads(said.stdout)["problems"]
    lines = file.read_text(encoding="utf-8").splitlines()
    assert lines[problem["line"] - 1].startswith('name = "jsonl"')


def test_the_list_of_the_command_line_travels_with_the_jobs_configuration(job_file, monkeypatch):
    monkeypatch.setenv(BLOCK_VARIABLE, "observer/console_log")
    file = job_file('["engine_backend/sglang"]')
    config = pickle.loads(pickle.dumps(resolve_file(file).config))
    monkeypatch.delenv(BLOCK_VARIABLE)  # as in an actor on another machine
    assert load_config(file).plugins.block == ("engine_backend/sglang",)
    blocked = {plugin.path for plugin in job_plugins(config.plugins).list() if plugin.blocked_by}
    assert blocked == {"engine_backend/sglang", "observer/console_log"}
