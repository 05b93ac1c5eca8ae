"""docs/reference/config.md is what its generator writes, and leaves nothing out."""

from __future__ import annotations

import inspect

import attrs
import pytest

from rolecall.config import specs
from rolecall.errors import UnknownPluginError
from rolecall.plugins.host import PluginHost
from rolecall.plugins.installed import PluginInfo
from rolecall.plugins.kinds import PluginKind


@pytest.fixture(scope="module")
def generator(docs_script):
    return docs_script("generate_config_reference")


def test_the_committed_page_is_the_generated_one(generator):
    assert generator.PAGE.read_text(encoding="utf-8") == generator.render(), (
        "run: python docs/generate_config_reference.py"
    )


def test_every_table_is_on_the_page(generator):
    tables = {value for value in vars(specs).values() if inspect.isclass(value) and attrs.has(value)}
    assert set(generator.TABLES) == tables


def test_every_key_is_explained_and_nothing_else_is(generator):
    for table in generator.TABLES:
        _, _, meanings = generator.describe(table)
        assert set(meanings) == {field.name for field in attrs.fields(table)}, table


def test_the_message_on_the_page_is_the_real_one(generator):
    names = ("affinity", "cache_aware", "round_robin")
    host = PluginHost(
        PluginInfo(kind=PluginKind.ROUTING_POLICY, name=name, distribution="d", version="1", target="m")
        for name in names
    )
    with pytest.raises(UnknownPluginError) as caught:
        host.load(PluginKind.ROUTING_POLICY, "cachaware")
    assert f": {caught.value}\n" in generator.render()
