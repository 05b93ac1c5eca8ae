"""Every contract fails a plugin that breaks it: for the intended reason, and for no other.

``wrong/`` has deliberately wrong plugins, each beside its contract's test class, whose ``fails`` names the
tests that have to fail with what their message says; all others have to pass. They are installed as a
distribution and run by a pytest of their own.
"""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from rolecall.testing import RoutingPolicyContract
from rolecall.testing.plugin_contract import PluginContract

WRONG = Path(__file__).parent / "wrong"
FILES = sorted(path for path in WRONG.glob("*.py") if path.stem != "as_installed")


def contracts_in(file: Path) -> dict[str, type[Any]]:
    """Return the test classes of a file by the id that reports give them."""
    classes = [value for value in runpy.run_path(str(file)).values() if isinstance(value, type)]
    return {f"{file.stem}.{cls.__name__}": cls for cls in classes if hasattr(cls, "fails")}


CLASSES = {name: cls for file in FILES for name, cls in contracts_in(file).items()}

CONTRACTS = sorted(
    {base for cls in CLASSES.values() for base in cls.__mro__ if PluginContract in base.__bases__}, key=str
)

Report = Mapping[str, Mapping[str, str]]
"""Class → test (any of its parameters) → "" if it passed, else what it said."""


def read_reports(folder: Path) -> tuple[Report, set[str]]:
    """Return what was reported, and the tests that failed as they had announced."""
    report: dict[str, dict[str, str]] = {}
    announced: set[str] = set()
    for case in (case for file in folder.iterdir() for case in ElementTree.parse(file).iter("testcase")):
        test = case.attrib["name"].split("[")[0]
        name = ".".join(case.attrib["classname"].split(".")[-2:])
        tests = report.setdefault(name, {})
        tests.setdefault(test, "")
        for outcome in case:
            if outcome.tag in ("failure", "error"):
                tests[test] += f"{outcome.attrib['message']}\n{outcome.text}\n"
            elif outcome.attrib.get("type") == "pytest.xfail":
                announced.add(f"{name}::{test}: {outcome.attrib['message']}")
    return report, announced


COMMAND = (sys.executable, "-m", "pytest", "-o", "addopts=", "--import-mode=prepend", "-q", "--tb=line")
PLUGINS = ("as_installed", "no:cacheprovider", "no:hypothesispytest", "no:logging", "no:anyio")
AT_ONCE = 2


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, set[str]]:
    """All wrong plugins against their contracts."""
    folder = tmp_path_factory.mktemp("wrong")
    runs = [start(FILES[part::AT_ONCE], folder / f"{part}.xml") for part in range(AT_ONCE)]
    for run in runs:
        output, _ = run.communicate()
        assert run.returncode == 1, output
    return read_reports(folder)


def start(files: Sequence[Path], report: Path) -> subprocess.Popen[str]:
    plugins = [argument for plugin in PLUGINS for argument in ("-p", plugin)]
    return subprocess.Popen(
        [*COMMAND, *plugins, f"--junitxml={report}", *map(str, files)],
        env={**os.environ, "PYTHONPATH": str(WRONG)},
        cwd=WRONG,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize("name", CLASSES)
def test_it_fails_for_the_intended_reason_only(name: str, reported: tuple[Report, set[str]]) -> None:
    expected, tests = CLASSES[name].fails, reported[0][name]
    failed = {test: said for test, said in tests.items() if said}
    assert sorted(failed) == sorted(expected), "\n".join(failed.values())
    for test, reason in expected.items():
        assert re.search(reason, failed[test]), f"{test} says {failed[test]}, not {reason}"


@pytest.mark.parametrize("contract", CONTRACTS)
def test_every_promise_is_broken_by_some_plugin(contract: type[PluginContract]) -> None:
    """A test that no wrong plugin fails might be one that can't fail."""
    promises = {name for base in contract.__mro__ for name in vars(base) if name.startswith("test_")}
    classes = [cls for cls in CLASSES.values() if issubclass(cls, contract)]
    broken = {test for cls in classes for test in cls.fails}
    assert promises - broken == {"test_its_entry_point_leads_to_it"} - broken


@pytest.mark.parametrize("contract", CONTRACTS)
def test_a_sound_plugin_breaks_none(contract: type[PluginContract]) -> None:
    """So what the wrong ones, which inherit from it, are failed for is their own."""
    assert [cls for cls in CLASSES.values() if issubclass(cls, contract) and not cls.fails]


# --- a contract's tests are not dropped in silence ---------------------------------------


def test_a_test_can_not_be_overridden_without_a_reason() -> None:
    with pytest.raises(TypeError, match=r"overrides test_any_text_is_a_key of its contract; mark it with"):

        class TestQuiet(RoutingPolicyContract):
            def test_any_text_is_a_key(self) -> None: ...


def test_a_mark_without_a_reason_is_none() -> None:
    with pytest.raises(TypeError, match="overrides test_any_text_is_a_key"):

        class TestQuiet(RoutingPolicyContract):
            @pytest.mark.xfail
            def test_any_text_is_a_key(self) -> None: ...


def test_an_override_with_a_reason_is_seen_in_every_report(reported: tuple[Report, set[str]]) -> None:
    assert reported[1] == {
        "policies.TestByChanceAndSayingSo::test_an_instance_has_counters_of_its_own: it draws lots on purpose"
    }


def test_authors_need_pytest_and_pytest_asyncio_only() -> None:
    code = (
        "import sys, rolecall.testing as t; [getattr(t, name) for name in dir(t)];"
        "print(sorted({'hypothesis', 'pytest_timeout', 'sglang_router', 'ray'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
