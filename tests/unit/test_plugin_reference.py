"""docs/reference/plugins.md says what the code says."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path

import pytest

from rolecall import errors
from rolecall.interfaces.router import Router, RouterBackend
from rolecall.plugins import hookspecs
from rolecall.plugins.contract import PROTOCOLS, class_attributes, methods
from rolecall.plugins.host import PluginHost
from rolecall.plugins.installed import PluginInfo, PluginState
from rolecall.plugins.kinds import PluginKind

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "plugins.md").read_text(encoding="utf-8")


def table(heading: str) -> list[list[str]]:
    """The rows of the first table after a heading, cells without their code marks."""
    lines = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0].splitlines()
    rows = [line for line in lines if line.startswith("|")][2:]
    return [[cell.strip().replace("`", "") for cell in row.strip("|").split("|")] for row in rows]


def test_hooks_are_named_with_their_exact_signatures():
    written = re.findall(r"^def (rolecall_\w+)(\(.*\) -> .*): \.\.\.$", PAGE, re.MULTILINE)
    specified = [
        (name, str(inspect.signature(hook)).replace("'", ""))
        for name, hook in vars(hookspecs).items()
        if name.startswith("rolecall_")
    ]
    assert written == specified


def test_kinds_and_groups():
    assert table("Kinds, groups and hooks") == [
        [kind.label, kind.group, kind.hook, PROTOCOLS[kind].__name__] for kind in PluginKind
    ]


def test_members_of_each_class():
    assert [row[:3] for row in table("What a class must have")] == [
        [protocol.__name__, ", ".join(class_attributes(protocol)), ", ".join(methods(protocol))]
        for protocol in PROTOCOLS.values()
    ]


def test_members_of_a_router():
    assert [row[:3] for row in table("Routers of a policy")] == [
        [protocol.__name__, ", ".join(class_attributes(protocol)), ", ".join(methods(protocol))]
        for protocol in (RouterBackend, Router)
    ]


def test_the_supported_version():
    assert f"(now {hookspecs.ROLECALL_API})" in PAGE


def test_every_plugin_error_is_described():
    described = [row[0] for row in table("Errors")]
    assert described == [error.__name__ for error in errors.PluginError.__subclasses__()]


def test_each_entry_of_the_block_list_blocks():
    (text,) = [block for block in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL) if "[plugins]" in block]
    installed = [
        PluginInfo(kind=kind, name=name, distribution=distribution, version="1", target="m")
        for kind, name, distribution in (
            (PluginKind.OBSERVER, "bell", "acme-routing"),
            (PluginKind.OBSERVER, "pager", "other"),
            (PluginKind.ROUTING_POLICY, "sticky", "zeta-tools"),
        )
    ]
    host = PluginHost(installed, block=tomllib.loads(text)["plugins"]["block"])
    assert host.block_faults() == ()
    assert {plugin.state for plugin in host.list()} == {PluginState.BLOCKED}


def test_the_trace_is_what_is_written(capsys):
    (text,) = [block for block in re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL) if "plugins[" in block]
    ours = [plugin for plugin in PluginHost.from_environment().list() if plugin.distribution == "rolecall"]
    PluginHost(ours, trace=True).load(PluginKind.OBSERVER, "console_log")
    variable = re.compile(r"\[\d+\]|[\d.]+ ms")
    assert variable.sub("", capsys.readouterr().err) == variable.sub("", text)


@pytest.mark.parametrize("kind", [PluginKind.ROUTING_POLICY])
def test_the_example_is_a_sound_plugin(fake_site, kind):
    (code,) = [
        block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "acme_routing" in block
    ]
    fake_site.install(
        "acme-routing", entry_points={kind.group: {"first": "acme_first"}}, modules={"acme_first": code}
    )
    assert PluginHost.from_environment().load(kind, "first").__name__ == "First"
