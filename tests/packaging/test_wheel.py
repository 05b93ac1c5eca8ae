"""The built wheel holds what it should and works where this tree is not."""

from __future__ import annotations

import configparser
import json
import re
import tomllib
import zipfile
from collections.abc import Mapping
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.packaging, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
IMPORT_PACKAGES = {
    "rolecall",
    "rolecall_roles",
    "rolecall_routing",
    "rolecall_placement",
    "rolecall_plugins",
    "rolecall_loops",
}
ONE_GB = 1_000_000_000


def project(distribution: str = "rolecall") -> dict[str, Any]:
    folder = ROOT if distribution == "rolecall" else ROOT / "plugins" / "examples" / distribution
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def archive(rolecall_wheel: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(rolecall_wheel)


def metadata_file(archive: zipfile.ZipFile, name: str) -> str:
    (found,) = [file for file in archive.namelist() if file.endswith(f".dist-info/{name}")]
    return archive.read(found).decode()


def test_it_holds_the_six_packages_and_nothing_else(archive: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == IMPORT_PACKAGES
    sources = {
        file.relative_to(root).as_posix()
        for package in IMPORT_PACKAGES
        for root in [next(ROOT.glob(f"*/{package}")).parent]
        for file in (root / package).rglob("*.py")
    }
    assert {name for name in archive.namelist() if name.endswith(".py")} == sources


def test_it_holds_no_tests_and_no_examples(archive: zipfile.ZipFile) -> None:
    strays = [
        name for name in archive.namelist() if re.search(r"(^|/)(tests?|examples|test_[^/]*\.py)(/|$)", name)
    ]
    assert strays == []


def test_it_is_typed_and_licensed(archive: zipfile.ZipFile) -> None:
    assert {f"{package}/py.typed" for package in IMPORT_PACKAGES} <= set(archive.namelist())
    assert "Apache License" in metadata_file(archive, "licenses/LICENSE")
    headers = HeaderParser().parsestr(metadata_file(archive, "METADATA"))
    assert headers["License-Expression"] == "Apache-2.0"
    assert set(headers["Requires-Python"].split(",")) == {">=3.11", "<3.14"}


def test_every_entry_point_leads_to_a_module_of_the_wheel(archive: zipfile.ZipFile) -> None:
    declared = configparser.ConfigParser(delimiters=("=",))
    declared.optionxform = str  # type: ignore[assignment]
    declared.read_string(metadata_file(archive, "entry_points.txt"))
    groups = {group: dict(declared[group]) for group in declared.sections()}
    assert groups.pop("console_scripts") == project()["scripts"]
    assert groups == project()["entry-points"]
    files = set(archive.namelist())
    for points in groups.values():
        for module in points.values():
            path = module.replace(".", "/")
            assert {f"{path}.py", f"{path}/__init__.py"} & files, f"{module} is not in the wheel"


def test_no_path_of_this_machine_is_in_it(archive: zipfile.ZipFile) -> None:
    here = {str(ROOT), str(Path.home()) + "/"} - {"//"}
    holders = [
        name for name in archive.namelist() if any(path.encode() in archive.read(name) for path in here)
    ]
    assert holders == []


def test_the_default_installation_is_small(installation: Any) -> None:
    assert installation.default_bytes < 0.8 * ONE_GB  # compiled modules add a fifth
    assert not (installation.site_packages / "torch").exists()


def test_nothing_is_imported_from_this_tree(installation: Any) -> None:
    files = installation.run(
        "python", "-c", f"for n in {sorted(IMPORT_PACKAGES)}: print(__import__(n).__file__)"
    )
    assert all(Path(file).is_relative_to(installation.venv) for file in files.split())


def test_every_first_party_plugin_loads(installation: Any) -> None:
    # The TransferQueue sink needs its extra only when it is opened.
    assert "broken" not in installation.run("rolecall", "plugins", "check")


def test_listing_knows_whose_each_plugin_is(installation: Any, example_wheels: Mapping[str, Path]) -> None:
    listed = json.loads(installation.run("rolecall", "plugins", "list", "--json"))
    owners = {(plugin["group"], plugin["name"]): plugin["distribution"] for plugin in listed}
    assert owners == {
        (group, name): distribution
        for distribution in ("rolecall", *example_wheels)
        for group, names in project(distribution)["entry-points"].items()
        if group.startswith("rolecall.")
        for name in names
    }
    assert {plugin["state"] for plugin in listed} == {"installed"}
