"""``rolecall plan`` with pictures, diffs and JSON, of a job file that comes with the project."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from rolecall.cli.plan import plan

QUICKSTART = Path(__file__).parents[3] / "examples/quickstart.toml"
SPLIT = ("--set", 'placement.mode="split"', "--gpus", "6")

Check = Callable[[object], None]


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(plan, [str(argument) for argument in arguments], catch_exceptions=False)


def test_pictures_are_written_beside_the_map(tmp_path: Path) -> None:
    svg, html = tmp_path / "plan.svg", tmp_path / "plan.html"
    result = run(QUICKSTART, "--svg", svg, "--html", html)
    assert result.exit_code == 0
    assert result.stdout == run(QUICKSTART).stdout
    assert (
        len(list(ElementTree.fromstring(svg.read_text("utf-8")).iter("{http://www.w3.org/2000/svg}g"))) == 6
    )
    assert html.read_text("utf-8").startswith("<!doctype html>")
    assert "<h1>" in html.read_text("utf-8")


@pytest.mark.parametrize(("option", "start"), [("--svg", "<svg "), ("--html", "<!doctype html>")])
def test_a_picture_on_standard_output_takes_the_place_of_the_map(option: str, start: str) -> None:
    result = run(QUICKSTART, option, "-")
    assert result.exit_code == 0
    assert result.stdout.startswith(start)
    assert "bundle   0 1" not in result.stdout


def test_standard_output_is_one_thing(tmp_path: Path) -> None:
    result = run(QUICKSTART, "--svg", "-", "--json")
    assert result.exit_code == 2
    assert "only one of them can have standard output" in result.stderr
    assert json.loads(run(QUICKSTART, "--json", "--svg", tmp_path / "plan.svg").stdout)["mode"] == "defer"


def test_a_picture_that_can_not_be_written_is_an_error(tmp_path: Path) -> None:
    result = run(QUICKSTART, "--svg", tmp_path / "nowhere" / "plan.svg")
    assert result.exit_code == 1
    assert "nowhere" in result.stderr


def test_a_job_that_can_not_be_placed_leaves_no_picture(tmp_path: Path) -> None:
    svg = tmp_path / "plan.svg"
    svg.write_text("as it was")
    assert run(QUICKSTART, "--gpus", "1", "--svg", svg).exit_code == 2
    assert svg.read_text() == "as it was"
    assert list(tmp_path.iterdir()) == [svg]


def test_what_a_change_would_change_is_a_diff_with_the_file_as_it_is(tmp_path: Path) -> None:
    svg = tmp_path / "diff.svg"
    result = run(QUICKSTART, *SPLIT, "--diff", QUICKSTART, "--svg", svg)
    assert result.exit_code == 0
    assert result.stdout.startswith("quickstart.toml → quickstart.toml with --gpus, --set · 4 moved\n")
    assert "  - rollout    R R │     │\n" in result.stdout
    assert "  + inference  R R │ G G │ T T\n" in result.stdout
    assert "quickstart.toml with --gpus, --set" in svg.read_text("utf-8")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """The same job with half of its devices, in a file of the same name elsewhere."""
    text = QUICKSTART.read_text("utf-8")
    text = text.replace("prompts/", f"{QUICKSTART.parent}/prompts/").replace(
        "\ndevices = 2\n", "\ndevices = 1\n"
    )
    other = tmp_path / QUICKSTART.name
    other.write_text(text, "utf-8")
    return other


def test_a_diff_of_two_files_of_one_name_tells_them_apart(small: Path, tmp_path: Path) -> None:
    html = tmp_path / "diff.html"
    assert run(small, "--gpus", "2", "--diff", QUICKSTART, "--html", html).exit_code == 0
    assert f"<b>{QUICKSTART} → {small} with --gpus</b> · both jobs get the same layout" in html.read_text(
        "utf-8"
    )


def test_what_is_wrong_with_the_other_file_names_that_file(small: Path, check_document: Check) -> None:
    result = run(QUICKSTART, "--diff", small)
    assert result.exit_code == 2
    assert f"{small}: this job can't be placed" in result.stderr
    document = json.loads(run(QUICKSTART, "--diff", small, "--json").stdout)
    check_document(document)
    assert document["file"] == str(small)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ((), "replicas"),
        ((*SPLIT, "--diff", QUICKSTART), "diff"),
        (("--gpus", "1"), "refusals"),
        (("--gpus", "1", "--suggest"), "suggestions"),
        (("--set", "placement.devices=[]"), "problems"),
    ],
)
def test_all_json_is_as_the_schema_says(
    options: tuple[str | Path, ...], key: str, check_document: Check
) -> None:
    document = json.loads(run(QUICKSTART, *options, "--json").stdout)
    assert document[key]
    check_document(document)
