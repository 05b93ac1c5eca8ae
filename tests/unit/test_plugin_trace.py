"""The trace of plugins: every step, on standard error only, in every process that asks for it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rolecall.errors import PluginLoadError
from rolecall.plugins.host import PluginHost
from rolecall.plugins.kinds import PluginKind

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.toml"


def rolecall(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rolecall.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)


def test_each_selected_plugin_is_told_with_its_steps_and_times():
    said = rolecall("--trace-plugins", "plan", "--json", str(QUICKSTART))
    assert json.loads(said.stdout)["mode"] == "defer"
    lines = [line for line in said.stderr.splitlines() if line.startswith("plugins[")]
    assert "installed by rolecall" in lines[0]
    assert "blocked: none" in lines[0]
    steps = [line.split("]: ")[1] for line in lines if 'engine backend "embedded"' in line]
    assert [re.sub(r"[\d.]+ ms$", "", step.split(": ", 1)[1]) for step in steps] == [
        "found in the group rolecall.engine_backends as rolecall_plugins.engines.embedded",
        "import of rolecall_plugins.engines.embedded: ",
        "rolecall_engine_backend: ",
        "check of EmbeddedBackend: ",
    ]
    assert all(re.search(r" \d+\.\d ms$", step) for step in steps[1:])
    assert "console_log" not in said.stderr  # installed, not selected


def test_without_it_nothing_is_said():
    assert rolecall("plan", "--json", str(QUICKSTART)).stderr == ""


def test_a_step_that_raises_is_told_as_such(fake_site, capfd):
    fake_site.install(
        "acme",
        entry_points={"rolecall.observers": {"pager": "acme_bad"}},
        modules={"acme_bad": "raise RuntimeError('no pager here')"},
    )
    with pytest.raises(PluginLoadError):
        PluginHost.from_environment(trace=True).load(PluginKind.OBSERVER, "pager")
    said = capfd.readouterr().err
    assert re.search(
        rf'plugins\[{os.getpid()}\]: observer "pager" of acme 1\.0: import of acme_bad: '
        r"raised PluginLoadError after [\d.]+ ms",
        said,
    )
