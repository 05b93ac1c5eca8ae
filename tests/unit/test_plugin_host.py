"""Loading plugins by name: what is imported, what is refused, and in which words."""

from __future__ import annotations

import sys
import traceback

import pytest

from rolecall.errors import (
    DuplicatePluginError,
    PluginContractError,
    PluginLoadError,
    UnknownPluginError,
)
from rolecall.plugins import hookspecs
from rolecall.plugins.contract import PROTOCOLS
from rolecall.plugins.host import PluginHost
from rolecall.plugins.kinds import PluginKind


def install(fake_site, code, *, group="rolecall.observers", name="pager", module="acme_pager", target=None):
    entry_points = {group: {name: target or module}}
    fake_site.install("acme", "1.2", entry_points=entry_points, modules={module: code})


def load(kind=PluginKind.OBSERVER, name="pager"):
    return PluginHost.from_environment().load(kind, name)


def refused(fake_site, code, error=PluginContractError, **options) -> str:
    install(fake_site, code, **options)
    with pytest.raises(error) as caught:
        load()
    message = str(caught.value)
    assert 'observer "pager" of acme 1.2' in message
    return message


# --- selection --------------------------------------------------------------------------


def test_load_returns_the_class_and_imports_once(fake_site):
    install(fake_site, fake_site.PAGER)
    host = PluginHost.from_environment()
    assert "acme_pager" not in sys.modules
    loaded = host.load(PluginKind.OBSERVER, "pager")
    assert loaded.__module__ == "acme_pager"
    del sys.modules["acme_pager"]
    assert host.load(PluginKind.OBSERVER, "pager") is loaded


def test_only_the_selected_plugin_is_imported(fake_site):
    install(fake_site, fake_site.PAGER)
    fake_site.install(
        "zeta",
        entry_points={"rolecall.observers": {"bad": "zeta_bad"}},
        modules={"zeta_bad": "raise RuntimeError('imported')"},
    )
    load()
    assert "zeta_bad" not in sys.modules


def test_an_unknown_name_lists_the_installed_ones_and_the_nearest(fake_site):
    for name in ("affinity", "cache_aware", "round_robin"):
        fake_site.install(f"dist-{name}", entry_points={"rolecall.observers": {f"{name}_x": "m"}})
    host = PluginHost.from_environment()
    with pytest.raises(UnknownPluginError) as caught:
        host.load(PluginKind.OBSERVER, "cachaware_x")
    names = ", ".join(host.names(PluginKind.OBSERVER))
    assert "affinity_x, cache_aware_x" in names
    assert str(caught.value) == (
        'observer "cachaware_x" is not installed; did you mean "cache_aware_x"? '
        f"Installed: {names}. See: rolecall plugins list"
    )


def test_an_unknown_name_like_no_other_gets_no_guess():
    with pytest.raises(UnknownPluginError, match=r'"qqqqqqqq" is not installed\. Installed: '):
        load(name="qqqqqqqq")


def test_the_message_says_when_nothing_of_the_kind_is_installed():
    with pytest.raises(UnknownPluginError, match="Installed: none"):
        PluginHost([]).load(PluginKind.ROLE, "judge")


def test_a_name_claimed_twice_is_refused_when_selected_and_names_both(fake_site):
    install(fake_site, fake_site.PAGER)
    fake_site.install("zeta", "0.3", entry_points={"rolecall.observers": {"pager": "zeta_pager"}})
    host = PluginHost.from_environment()
    with pytest.raises(DuplicatePluginError) as caught:
        host.load(PluginKind.OBSERVER, "pager")
    assert "acme 1.2 (acme_pager), zeta 0.3 (zeta_pager)" in str(caught.value)
    assert "acme_pager" not in sys.modules


# --- broken plugins ---------------------------------------------------------------------


def test_an_exception_on_import_is_kept_as_the_cause(fake_site):
    message = refused(fake_site, "def explode():\n    raise KeyError('who')\nexplode()", PluginLoadError)
    assert "importing acme_pager raised KeyError: 'who'" in message


def test_the_cause_has_the_plugins_own_traceback(fake_site):
    install(fake_site, "def explode():\n    raise KeyError('who')\nexplode()")
    with pytest.raises(PluginLoadError) as caught:
        load()
    assert "in explode" in "".join(traceback.format_exception(caught.value.__cause__))


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import acme_absent", "ModuleNotFoundError: No module named 'acme_absent'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("def broken(:", "SyntaxError"),
    ],
)
def test_whatever_an_import_raises_is_a_load_error(fake_site, code, words):
    assert words in refused(fake_site, code, PluginLoadError)


def test_a_module_that_is_not_there_is_a_load_error(fake_site):
    assert "No module named 'acme_gone'" in refused(
        fake_site, fake_site.PAGER, PluginLoadError, target="acme_gone"
    )


def test_a_plugin_that_failed_to_load_is_tried_again(fake_site):
    install(fake_site, "import acme_later\n" + "\n".join(line[4:] for line in fake_site.PAGER.splitlines()))
    host = PluginHost.from_environment()
    with pytest.raises(PluginLoadError):
        host.load(PluginKind.OBSERVER, "pager")
    fake_site.install("later", modules={"acme_later": ""})
    assert host.load(PluginKind.OBSERVER, "pager").name == "pager"


def test_a_hook_that_raises_is_a_load_error(fake_site):
    code = fake_site.PAGER.replace("return Pager", "raise OSError('no pager')")
    assert "rolecall_observer raised OSError: no pager" in refused(fake_site, code, PluginLoadError)


# --- hooks ------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["acme_pager:Pager", "acme_pager [extra]", "acme pager"])
def test_an_entry_point_names_a_module_and_nothing_more(fake_site, target):
    message = refused(fake_site, fake_site.PAGER, target=target)
    assert "must name a module" in message
    assert "rolecall_observer" in message


def test_a_misspelt_hook_is_told_with_the_nearest_one(fake_site):
    message = refused(fake_site, fake_site.PAGER.replace("def rolecall_observer", "def rolecall_obsrver"))
    assert '"rolecall_obsrver" in acme_pager is marked as a hook' in message
    assert 'did you mean "rolecall_observer"?' in message


def test_a_misspelt_hook_beside_the_right_one_is_told_too(fake_site):
    code = fake_site.PAGER + "\n    @hookimpl\n    def rolecall_roles():\n        return None\n"
    assert 'did you mean "rolecall_role"?' in refused(fake_site, code)


def test_a_hook_without_its_mark_is_told(fake_site):
    assert "must be marked with @hookimpl" in refused(fake_site, fake_site.PAGER.replace("@hookimpl", ""))


def test_a_module_without_a_hook_is_told(fake_site):
    message = refused(fake_site, "x = 1")
    assert (
        "acme_pager must implement rolecall_observer, being registered in the group rolecall.observers"
        in message
    )


def test_a_hook_of_another_kind_is_told(fake_site):
    message = refused(fake_site, fake_site.PAGER.replace("def rolecall_observer", "def rolecall_role"))
    assert message.endswith("; it implements rolecall_role, which belongs in the group rolecall.roles")


def test_a_hook_with_an_unknown_argument_is_told(fake_site):
    message = refused(fake_site, fake_site.PAGER.replace("rolecall_observer()", "rolecall_observer(config)"))
    assert message.endswith("must take no argument, found rolecall_observer(config)")


def test_a_hook_that_returns_no_class_is_told(fake_site):
    message = refused(fake_site, fake_site.PAGER.replace("return Pager", "return Pager()"))
    assert "rolecall_observer must return a class" in message


def test_one_module_may_serve_two_kinds(fake_site):
    code = fake_site.PAGER + (
        "\n    class Ring:"
        '\n        name = "ring"'
        "\n        api_version = 1"
        "\n        needs = frozenset()"
        "\n        router = None"
        "\n        def select(self, candidates, request):"
        "\n            return candidates[0]"
        "\n    @hookimpl"
        "\n    def rolecall_routing_policy():"
        "\n        return Ring\n"
    )
    fake_site.install(
        "acme",
        entry_points={
            "rolecall.observers": {"pager": "acme_two"},
            "rolecall.routing_policies": {"ring": "acme_two"},
        },
        modules={"acme_two": code},
    )
    host = PluginHost.from_environment()
    assert host.load(PluginKind.OBSERVER, "pager").__name__ == "Pager"
    assert host.load(PluginKind.ROUTING_POLICY, "ring").__name__ == "Ring"


# --- the class --------------------------------------------------------------------------


def test_the_declared_name_must_be_the_entry_points(fake_site):
    message = refused(fake_site, fake_site.PAGER.replace('name = "pager"', 'name = "beeper"'))
    assert '"name" is "beeper", but the entry point is called "pager"' in message


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ("2", '"api_version" is 2; this rolecall supports 1 only'),
        ("'1'", "\"api_version\" must be int, found '1'"),
        ("True", '"api_version" must be int, found True'),
    ],
)
def test_the_api_version_must_be_supported(fake_site, declared, words):
    assert words in refused(
        fake_site, fake_site.PAGER.replace("api_version = 1", f"api_version = {declared}")
    )


def test_every_broken_rule_is_told_at_once(fake_site):
    code = """
        from rolecall.api import hookimpl

        class Pager:
            name = "beeper"
            on_event = 3

        @hookimpl
        def rolecall_observer():
            return Pager
    """
    message = refused(fake_site, code)
    assert '"name" is "beeper"' in message
    assert 'the class attribute "api_version" is missing' in message
    assert '"on_event" must be a method, found 3' in message


def test_a_method_inherited_from_the_protocol_is_missing(fake_site):
    code = fake_site.PAGER.replace(
        "class Pager:", "from rolecall.api import Observer\n    class Pager(Observer):"
    )
    code = code.replace("def on_event", "def on_evnt")
    assert 'the method "on_event" is missing' in refused(fake_site, code)


SINK = """
    from attrs import frozen
    from rolecall.api import hookimpl

    @frozen(kw_only=True)
    class Options:
        folder: str = "."

    class Sink:
        name = "drain"
        api_version = 1
        options = Options

        def __init__(self, options, context): ...
        def open(self): ...
        def put(self, partition, rows): ...
        def read(self, partition): ...
        def clear(self, partition): ...
        def close(self): ...

    @hookimpl
    def rolecall_batch_sink():
        return Sink
"""


def sink_message(fake_site, code) -> str:
    install(fake_site, code, group="rolecall.batch_sinks", name="drain", module="acme_drain")
    with pytest.raises(PluginContractError) as caught:
        load(PluginKind.BATCH_SINK, "drain")
    return str(caught.value)


def test_a_sound_sink_loads(fake_site):
    install(fake_site, SINK, group="rolecall.batch_sinks", name="drain", module="acme_drain")
    assert load(PluginKind.BATCH_SINK, "drain").name == "drain"


def test_options_must_be_an_attrs_class(fake_site):
    assert '"options" must be an attrs class' in sink_message(
        fake_site, SINK.replace("@frozen(kw_only=True)", "")
    )


def test_options_must_have_types_that_exist(fake_site):
    assert "can't be resolved" in sink_message(fake_site, SINK.replace("folder: str", "folder: 'Strng'"))


@pytest.mark.parametrize(
    ("attribute", "words"),
    [
        ("needs = 'affinity_key'", '"needs" must be frozenset[Need]'),
        ("needs = frozenset({'affinity_key'})", '"needs" must be frozenset'),
        ("", 'the class attribute "needs" is missing'),
    ],
)
def test_class_attributes_have_the_declared_type(fake_site, attribute, words):
    code = f"""
        from rolecall.api import hookimpl, Need

        class Ring:
            name = "ring"
            api_version = 1
            {attribute}
            def select(self, candidates, request): ...

        @hookimpl
        def rolecall_routing_policy():
            return Ring
    """
    install(fake_site, code, group="rolecall.routing_policies", name="ring", module="acme_ring")
    with pytest.raises(PluginContractError) as caught:
        load(PluginKind.ROUTING_POLICY, "ring")
    assert words in str(caught.value)


ROUTED = """
    from attrs import frozen
    from rolecall.api import hookimpl

    @frozen
    class Options: ...

    class Sound:
        options = Options
        pairs = True
        def lost_fields(self, path, payload): return ()
        def create(self, launch): ...

    class Unsound:
        options = dict
        pairs = "yes"
        def lost_fields(self, path, payload): return ()

    class Ring:
        name = "ring"
        api_version = 1
        needs = frozenset()
        router = ROUTER
        def select(self, candidates, request): ...

    @hookimpl
    def rolecall_routing_policy():
        return Ring
"""


def load_routed(fake_site, router):
    code = ROUTED.replace("ROUTER", router)
    install(fake_site, code, group="rolecall.routing_policies", name="ring", module="acme_ring")
    return load(PluginKind.ROUTING_POLICY, "ring")


@pytest.mark.parametrize("router", ["None", "Sound"])
def test_a_policy_may_bring_a_router(fake_site, router):
    assert load_routed(fake_site, router).name == "ring"


@pytest.mark.parametrize(
    ("router", "words"),
    [
        ("Sound()", '"router" must be type[RouterBackend] | None, found an instance of Sound'),
        ("Unsound", '"router" (Unsound): "pairs" must be bool, found \'yes\''),
        ("Unsound", '"router" (Unsound): "options" must be an attrs class'),
        ("Unsound", '"router" (Unsound): the method "create" is missing'),
    ],
)
def test_a_policys_router_has_a_contract_of_its_own(fake_site, router, words):
    with pytest.raises(PluginContractError) as caught:
        load_routed(fake_site, router)
    assert words in str(caught.value)


# --- the tables of kinds ----------------------------------------------------------------


def test_every_kind_has_a_hook_specification_and_a_contract():
    specifications = {name for name in vars(hookspecs) if name.startswith("rolecall_")}
    assert {kind.hook for kind in PluginKind} == specifications
    assert set(PROTOCOLS) == set(PluginKind)


def test_each_hook_promises_the_class_of_its_kind():
    for kind, protocol in PROTOCOLS.items():
        assert getattr(hookspecs, kind.hook).__annotations__["return"] == f"type[{protocol.__name__}]"


# --- check ------------------------------------------------------------------------------


def test_check_loads_all_and_reports_each(fake_site):
    install(fake_site, fake_site.PAGER)
    fake_site.install(
        "zeta",
        entry_points={"rolecall.observers": {"bad": "zeta_bad"}},
        modules={"zeta_bad": "raise RuntimeError('no')"},
    )
    host = PluginHost.from_environment()
    results = host.check()
    assert tuple(result.plugin for result in results) == host.list()
    errors = {result.plugin.name: result.error for result in results}
    assert errors["pager"] is None
    assert isinstance(errors["bad"], PluginLoadError)
