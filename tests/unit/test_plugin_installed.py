"""What is installed, from metadata alone."""

from __future__ import annotations

import logging
import sys
import tomllib
from pathlib import Path

import pytest

from rolecall.plugins.installed import PluginState, installed_plugins, with_rivals
from rolecall.plugins.kinds import PluginKind

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def claims(name: str):
    return [plugin for plugin in with_rivals(installed_plugins()) if plugin.name == name]


def test_a_plugin_is_listed_with_its_distribution_and_not_imported(fake_site):
    fake_site.install(
        "acme-routing",
        "1.2",
        entry_points={"rolecall.routing_policies": {"sticky": "acme_sticky"}},
        modules={"acme_sticky": "raise RuntimeError('imported')"},
    )
    (plugin,) = claims("sticky")
    assert (plugin.kind, plugin.distribution, plugin.version) == (
        PluginKind.ROUTING_POLICY,
        "acme-routing",
        "1.2",
    )
    assert plugin.target == "acme_sticky"
    assert plugin.state is PluginState.INSTALLED
    assert "acme_sticky" not in sys.modules


def test_other_groups_are_none_of_our_business(fake_site):
    fake_site.install(
        "other", entry_points={"console_scripts": {"x": "y:z"}, "rolecall.unheard_of": {"q": "r"}}
    )
    assert not claims("x")
    assert not claims("q")


def test_every_first_party_plugin_of_this_project_is_found():
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    groups = {kind.group for kind in PluginKind}
    written = {
        (group, name)
        for group, points in project["entry-points"].items()
        for name in points
        if group in groups
    }
    found = {
        (plugin.kind.group, plugin.name)
        for plugin in installed_plugins()
        if plugin.distribution == "rolecall"
    }
    assert found == written


def test_two_distributions_with_one_name_of_a_kind_are_both_shown(fake_site):
    fake_site.install("acme", "1.0", entry_points={"rolecall.observers": {"pager": "acme_pager"}})
    fake_site.install("zeta", "2.0", entry_points={"rolecall.observers": {"pager": "zeta_pager"}})
    first, second = claims("pager")
    assert first.state is second.state is PluginState.DUPLICATE
    assert first.rivals == ("zeta 2.0 (zeta_pager)",)
    assert second.rivals == ("acme 1.0 (acme_pager)",)


def test_one_name_in_two_kinds_is_no_conflict(fake_site):
    fake_site.install(
        "acme", entry_points={"rolecall.observers": {"same": "a"}, "rolecall.batch_sinks": {"same": "b"}}
    )
    assert [plugin.state for plugin in claims("same")] == [PluginState.INSTALLED] * 2


def test_one_distribution_that_names_two_modules_is_a_conflict_too(fake_site):
    info = fake_site.install("acme", entry_points={"rolecall.observers": {"pager": "one"}})
    with (info / "entry_points.txt").open("a", encoding="utf-8") as file:
        file.write("\n[rolecall.observers]\npager = two\n")
    assert [plugin.state for plugin in claims("pager")] == [PluginState.DUPLICATE] * 2


def test_an_editable_install_beside_its_source_tree_counts_once(fake_site, tmp_path, monkeypatch):
    entry_points = {"rolecall.observers": {"pager": "acme_pager"}}
    fake_site.install("acme", entry_points=entry_points)
    source = tmp_path / "source"
    egg = source / "acme.egg-info"
    egg.mkdir(parents=True)
    (egg / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n", encoding="utf-8")
    (egg / "entry_points.txt").write_text("[rolecall.observers]\npager = acme_pager\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(source))
    (plugin,) = claims("pager")
    assert plugin.state is PluginState.INSTALLED


def test_a_folder_twice_on_the_path_counts_once(fake_site, monkeypatch):
    fake_site.install("acme", entry_points={"rolecall.observers": {"pager": "acme_pager"}})
    monkeypatch.setattr(sys, "path", [str(fake_site.folder), *sys.path])
    assert len(claims("pager")) == 1


def test_an_older_version_further_down_the_path_is_hidden(fake_site, tmp_path, monkeypatch):
    fake_site.install(
        "acme", "1.0", entry_points={"rolecall.observers": {"old": "acme_old", "pager": "acme_pager"}}
    )
    newer = type(fake_site)(tmp_path / "newer")
    newer.install("acme", "2.0", entry_points={"rolecall.observers": {"pager": "acme_pager"}})
    monkeypatch.syspath_prepend(str(newer.folder))
    assert [plugin.version for plugin in claims("pager")] == ["2.0"]
    assert not claims("old")


@pytest.mark.parametrize("damage", ["malformed entry points", "no metadata"])
def test_a_damaged_distribution_is_left_out_with_a_warning(fake_site, caplog, damage):
    info = fake_site.install("broken", entry_points={"rolecall.observers": {"pager": "x"}})
    fake_site.install("sound", entry_points={"rolecall.observers": {"bell": "y"}})
    if damage == "no metadata":
        (info / "METADATA").unlink()
    else:
        (info / "entry_points.txt").write_text("[rolecall.observers]\npager\n", encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        assert not claims("pager")
    assert "broken" in caplog.text
    assert claims("bell")
