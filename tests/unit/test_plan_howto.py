"""What the page about planning a layout shows is what its commands print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from rolecall.cli.plan import plan

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "howto" / "plan-a-layout.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```console\n\$ rolecall plan (.*)\n((?:.*\n)*?)```", PAGE)


@pytest.mark.parametrize(("command", "printed"), BLOCKS, ids=[command for command, _ in BLOCKS])
def test_a_command_prints_what_is_shown(command: str, printed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    result = CliRunner().invoke(plan, shlex.split(command), catch_exceptions=False)
    shown = "\n".join(line.rstrip() for line in result.output.strip().splitlines())
    assert printed.strip() in ("", shown)
