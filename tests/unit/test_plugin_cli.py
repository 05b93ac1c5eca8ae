"""``rolecall plugins list`` and ``check`` as a user runs them."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys

import pytest
from click.testing import CliRunner

from rolecall.cli.plugins import plugins
from rolecall.plugins.blocking import BLOCK_VARIABLE

GOOD = """
    from rolecall.api import hookimpl

    class Pager:
        name = "pager"
        api_version = 1
        def on_event(self, event): ...

    @hookimpl
    def rolecall_observer():
        return Pager
"""
HEAVY = ("ray", "torch", "sglang", "xllamacpp", "starlette", "httpx", "numpy", "pluggy", "cattrs")


def run(*arguments: str):
    return CliRunner().invoke(plugins, arguments)


def install(fake_site, name="pager", module="acme_pager", distribution="acme", code=GOOD):
    entry_points = {"rolecall.observers": {name: module}}
    fake_site.install(distribution, "1.2", entry_points=entry_points, modules={module: code})


def test_list_shows_kind_name_distribution_version_and_state(fake_site):
    install(fake_site)
    result = run("list")
    assert result.exit_code == 0
    header, *rows = [line.split() for line in result.output.splitlines()]
    assert header == ["KIND", "NAME", "DISTRIBUTION", "VERSION", "STATE"]
    assert ["observer", "pager", "acme", "1.2", "installed"] in rows


def test_list_as_json(fake_site):
    install(fake_site)
    (plugin,) = [plugin for plugin in json.loads(run("list", "--json").output) if plugin["name"] == "pager"]
    assert plugin == {
        "kind": "observer",
        "group": "rolecall.observers",
        "name": "pager",
        "distribution": "acme",
        "version": "1.2",
        "target": "acme_pager",
        "state": "installed",
        "rivals": [],
        "blocked_by": None,
    }


def test_list_shows_what_is_blocked(fake_site, monkeypatch):
    install(fake_site)
    monkeypatch.setenv(BLOCK_VARIABLE, "acme")
    rows = [line.split() for line in run("list").output.splitlines()]
    assert ["observer", "pager", "acme", "1.2", "blocked"] in rows
    assert "pager" not in run("check").output
    monkeypatch.setenv(BLOCK_VARIABLE, "acme,acne")
    said = run("list")
    assert said.exit_code == 1
    assert '"acne" blocks nothing that is installed; did you mean "acme"?' in str(said.exception)


def test_list_shows_who_claims_a_name_twice(fake_site):
    install(fake_site)
    install(fake_site, module="zeta_pager", distribution="zeta")
    output = run("list").output
    assert output.count("duplicate") == 2
    assert 'observer "pager": acme 1.2 (acme_pager)' in output
    assert 'observer "pager": zeta 1.2 (zeta_pager)' in output


def test_list_on_a_terminal_draws_the_same_rows(fake_site, monkeypatch, capsys):
    install(fake_site)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    plugins(["list"], standalone_mode=False)
    output = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert "─" in output
    assert any(
        line.split() == ["observer", "pager", "acme", "1.2", "installed"] for line in output.splitlines()
    )


def test_check_tells_what_is_broken_and_fails(fake_site):
    install(fake_site)
    install(fake_site, "bad", "zeta_bad", "zeta", "def explode():\n    raise KeyError('who')\nexplode()")
    result = run("check")
    assert result.exit_code == 1
    rows = [line.split() for line in result.output.splitlines()]
    assert ["observer", "pager", "acme", "1.2", "ok"] in rows
    assert ["observer", "bad", "zeta", "1.2", "broken"] in rows
    assert "importing zeta_bad raised KeyError: 'who'" in result.output
    assert "in explode" not in result.output
    assert "in explode" in run("check", "--traceback").output


def test_check_of_sound_plugins_exits_with_0(fake_site, monkeypatch):
    install(fake_site)
    monkeypatch.setattr("importlib_metadata.distributions", _only(fake_site.folder))
    result = run("check")
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[1:] == ["observer  pager  acme          1.2      ok"]


def _only(folder):
    """Narrow the real search to one folder, as an environment without first-party plugins has it."""
    import importlib_metadata

    found = tuple(importlib_metadata.distributions(path=[str(folder)]))
    return lambda: found


@pytest.fixture
def listing(fake_site):
    """Lists plugins in a process of its own, which then prints what it has imported."""
    install(fake_site, "bad", "zeta_bad", "zeta", "raise RuntimeError('imported')")
    code = (
        "import sys\n"
        "from rolecall.cli.plugins import plugins\n"
        "plugins(['list'], standalone_mode=False)\n"
        "print('MODULES', *sys.modules)\n"
    )

    def run_it() -> str:
        environment = os.environ | {"PYTHONPATH": str(fake_site.folder)}
        command = [sys.executable, "-c", code]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    return run_it


def test_listing_imports_no_plugin_and_nothing_heavy(listing):
    output, _, modules = listing().partition("MODULES")
    assert "observer        bad" in output
    imported = set(modules.split())
    plugin_packages = {
        "zeta_bad",
        "rolecall_roles",
        "rolecall_routing",
        "rolecall_placement",
        "rolecall_plugins",
    }
    assert not imported & {*HEAVY, *plugin_packages}


def test_listing_is_quick(listing):
    """Processor time, not the clock: other processes must not fail this test."""

    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        listing()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(seconds() for _ in range(3)) < 0.5
