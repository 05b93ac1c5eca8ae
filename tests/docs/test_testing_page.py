"""docs/reference/testing.md names every fixture, and every contract class with its attributes."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from attrs import fields

import rolecall.testing
from rolecall.testing import pytest_plugin
from rolecall.testing.engine_server import Death, EngineServer, engine_server
from rolecall.testing.plugin_contract import PluginContract
from rolecall.testing.scripted_engine import Behaviour

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "testing.md").read_text(encoding="utf-8")
CONTRACTS = {"PluginContract": PluginContract} | {
    name: getattr(rolecall.testing, name) for name in dir(rolecall.testing)
}


def is_fixture(member: Any) -> bool:
    return isinstance(member, type(pytest_plugin.rolecall_clock))


def rows(text: str) -> dict[str, str]:
    """First and second cell of each row below a table's head."""
    return dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", text, re.MULTILINE))


def section(heading: str) -> str:
    """The text below a heading, up to the next one."""
    (text,) = re.findall(rf"^#+ {heading}\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return text


def described(contract: type[PluginContract]) -> dict[str, str]:
    """What a contract adds for its authors, as the page should write it."""
    members = dict.fromkeys(inspect.get_annotations(contract), "*required*") | dict(vars(contract))
    return {
        name: "*method*"
        if inspect.isfunction(value)
        else f"`{value!r}`".replace("`'*required*'`", "*required*")
        for name, value in members.items()
        if not name.startswith(("_", "test")) and name != "kind" and not is_fixture(value)
    }


@pytest.mark.parametrize("name", CONTRACTS)
def test_a_contract_is_described_with_its_attributes(name: str) -> None:
    assert rows(section(name)) == described(CONTRACTS[name])


def test_no_other_contract_is_described() -> None:
    assert set(re.findall(r"^### (\w+Contract)$", PAGE, re.MULTILINE)) == set(CONTRACTS)


def test_every_fixture_is_described() -> None:
    fixtures = {name for name, value in vars(pytest_plugin).items() if is_fixture(value)}
    assert set(rows(section("Fixtures"))) == fixtures
    assert {name for name in fixtures if section(name)} == fixtures


def test_the_engine_servers_members_and_behaviour_are_described() -> None:
    tables = rows(section("rolecall_engine_server"))
    defaults = Behaviour()
    behaviour = {field.name: f"`{getattr(defaults, field.name)!r}`" for field in fields(Behaviour)}
    assert {name: tables[name] for name in behaviour if name in tables} == behaviour
    with engine_server() as server:
        members = {name for name in dir(server) if not name.startswith("_")}
    assert members == {name for name in vars(EngineServer) if not name.startswith("_")} | {"engine"}
    assert set(tables) == set(behaviour) | members | {death.name for death in Death}
