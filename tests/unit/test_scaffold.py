"""``rolecall plugins new``: names that can be used, files that are written, nothing that is overwritten."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import rolecall.api
from rolecall.cli.plugins import plugins
from rolecall.errors import ScaffoldError
from rolecall.plugins.contract import PROTOCOLS
from rolecall.plugins.kinds import PluginKind
from rolecall.scaffold.distribution import render, write
from rolecall.scaffold.names import Names, as_argument, choose_names, parse_kind

ROOT = Path(__file__).parents[2]
EVERY_KIND = pytest.mark.parametrize("kind", PluginKind, ids=as_argument)
EXAMPLES = dict.fromkeys(PluginKind, "example")
LONGEST = "x" * 24


def names(kind: PluginKind = PluginKind.OBSERVER, name: str = "pager", distribution=None, taken=()) -> Names:
    return choose_names(kind, name, taken=taken, reserved=rolecall.api.__all__, distribution=distribution)


# --- kinds and names --------------------------------------------------------------------


@EVERY_KIND
def test_a_kind_is_known_by_its_label_however_it_is_written(kind: PluginKind) -> None:
    for text in (kind.label, as_argument(kind), kind.name, kind.label.title(), f" {kind.name.lower()} "):
        assert parse_kind(text) is kind


def test_an_unknown_kind_is_told_with_the_nearest_and_all() -> None:
    with pytest.raises(ScaffoldError) as caught:
        parse_kind("routing-polcy")
    assert str(caught.value) == (
        'there is no kind "routing-polcy" of plugin; did you mean "routing-policy"? Kinds: role, '
        "routing-policy, placement-mode, reward-adapter, engine-backend, batch-sink, observer"
    )


def test_the_names_follow_from_one_another() -> None:
    chosen = names(PluginKind.ROUTING_POLICY, "least_busy")
    assert chosen.distribution == "rolecall-least-busy"
    assert chosen.package == "rolecall_least_busy"
    assert chosen.class_name == "LeastBusyPolicy"
    assert names(PluginKind.ROUTING_POLICY, "my_policy").class_name == "MyPolicy"
    assert names(distribution="Acme.Plugins").package == "acme_plugins"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("My-Sink", 'can\'t name a plugin; "my_sink" would do. Lower-case'),
        ("7up", "can't name a plugin. Lower-case"),
        ("a__b", '"a_b" would do'),
        ("_a", '"a" would do'),
        ("", "can't name a plugin. Lower-case"),
        ("größe", "can't name a plugin"),
        ("x" * 25, "24 characters at most"),
        ("../evil", "can't name a plugin"),
        ("class", "is a word of Python"),
        ("taken", 'observer "taken" is installed already'),
    ],
)
def test_a_name_that_can_not_be_used_is_refused(name: str, told: str) -> None:
    with pytest.raises(ScaffoldError, match=re.escape(told)):
        names(name=name, taken=("taken", "other"))


@pytest.mark.parametrize(
    ("distribution", "told"),
    [
        ("rich", 'would be "rich", but Python can import one of that name already'),
        ("rolecall", 'would be "rolecall", but Python can import'),
        ("json", 'would be "json", but Python can import'),
        ("2fast", "which Python can't import"),
        ("class", "which Python can't import"),
        ("a b", "can't name a distribution"),
        ("a-", "can't name a distribution"),
        ("a" * 61, "60 characters at most"),
    ],
)
def test_a_distribution_that_can_not_be_imported_is_refused(distribution: str, told: str) -> None:
    with pytest.raises(ScaffoldError, match=re.escape(told)):
        names(distribution=distribution)


def test_a_class_never_hides_what_its_modules_import() -> None:
    with pytest.raises(ScaffoldError, match=r"would be called RoutingPolicy, .* such as my_routing"):
        names(PluginKind.ROUTING_POLICY, "routing")


# --- files ------------------------------------------------------------------------------


@EVERY_KIND
@pytest.mark.parametrize("name", ["x", LONGEST])
def test_what_is_written_is_lint_free_and_formatted(kind: PluginKind, name: str, tmp_path: Path) -> None:
    pytest.importorskip("ruff", reason="ruff is in the dependency group lint")
    distribution = None if name == "x" else "d" * 60
    write(render(names(kind, name, distribution), examples=EXAMPLES), tmp_path)
    for check in (["check"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *check, "--no-cache", "."]
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr


@EVERY_KIND
def test_it_has_all_that_a_distribution_needs(kind: PluginKind) -> None:
    chosen = names(kind)
    texts = render(chosen, examples=EXAMPLES)
    assert {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        ".gitignore",
        "src/rolecall_pager/__init__.py",
        "src/rolecall_pager/py.typed",
        "tests/test_rolecall_pager.py",
    } < set(texts)
    assert texts["LICENSE"] == (ROOT / "LICENSE").read_text(encoding="utf-8")
    project = tomllib.loads(texts["pyproject.toml"])["project"]
    assert project["entry-points"] == {kind.group: {"pager": "rolecall_pager"}}
    assert (
        f"def {kind.hook}() -> type[{PROTOCOLS[kind].__name__}]:" in texts["src/rolecall_pager/__init__.py"]
    )
    contract = f"class Test{chosen.class_name}({PROTOCOLS[kind].__name__}Contract):"
    assert contract in texts["tests/test_rolecall_pager.py"]


@EVERY_KIND
def test_its_modules_import_the_plugin_surface_only(kind: PluginKind) -> None:
    texts = render(names(kind), examples=EXAMPLES)
    for path, text in texts.items():
        if path.startswith("src/"):
            assert set(re.findall(r"^from (rolecall[\w.]*) import", text, re.MULTILINE)) <= {"rolecall.api"}
            assert "import rolecall" not in text


@EVERY_KIND
def test_its_readme_says_how_to_install_test_and_select_it(kind: PluginKind) -> None:
    readme = render(names(kind), examples=EXAMPLES)["README.md"]
    (piece,) = re.findall(r"```toml\n(.*?)```", readme, re.DOTALL)
    assert "pager" in str(tomllib.loads(piece))
    assert "pip install ." in readme
    assert "pip install -e '.[test]'\n$ pytest" in readme


def test_its_dependencies_are_those_that_it_imports() -> None:
    for kind in PluginKind:
        texts = render(names(kind), examples=EXAMPLES)
        listed = tomllib.loads(texts["pyproject.toml"])["project"]["dependencies"]
        source = "\n".join(text for path, text in texts.items() if path.startswith("src/"))
        imported = set(re.findall(r"^(?:from|import) (\w+)", source, re.MULTILINE))
        foreign = imported - sys.stdlib_module_names
        assert {re.split(r"\W", requirement)[0] for requirement in listed} == foreign, kind


# --- the command ------------------------------------------------------------------------


def new(*arguments: str) -> str:
    """Run the command in this process; errors come as they are, since ``main`` shows them."""
    result = CliRunner().invoke(plugins, ["new", *arguments], catch_exceptions=False, standalone_mode=False)
    return result.output


def test_it_writes_a_folder_of_the_distributions_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = new("batch_sink", "shelf")
    assert (tmp_path / "rolecall-shelf" / "src" / "rolecall_shelf" / "sink.py").is_file()
    assert "pip install -e 'rolecall-shelf[test]'" in said
    assert "pytest rolecall-shelf" in said


def test_it_writes_where_it_is_told(tmp_path: Path) -> None:
    new("observer", "pager", "--to", str(tmp_path / "deep" / "er"), "--distribution", "acme-pager")
    assert (tmp_path / "deep" / "er" / "src" / "acme_pager" / "observer.py").is_file()


def test_it_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine", encoding="utf-8")
    with pytest.raises(ScaffoldError, match="is there and not empty; choose another folder with --to DIR"):
        new("observer", "pager", "--to", str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]
    with pytest.raises(ScaffoldError, match="not empty"):
        new("observer", "pager", "--to", str(tmp_path / "README.md"))


def test_an_installed_name_is_refused() -> None:
    with pytest.raises(ScaffoldError, match='observer "console_log" is installed already'):
        new("observer", "console_log")


def test_its_help_lists_the_kinds() -> None:
    command = plugins.get_command(click.Context(plugins), "new")
    assert command is not None
    assert all(as_argument(kind) in (command.help or "") for kind in PluginKind)
