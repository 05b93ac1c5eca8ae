"""What the base of the contracts does for and with a class that inherits it."""

from __future__ import annotations

import asyncio

import pytest
from attrs import frozen

from rolecall.errors import ConfigError
from rolecall.testing.plugin_contract import PluginContract


@frozen(kw_only=True)
class Options:
    words: int = 1


class Plugin:
    name = "mine"
    options = Options


class Contract(PluginContract):
    plugin = Plugin

    async def test_in_its_time(self) -> None:
        await asyncio.sleep(0)

    def test_at_once(self) -> None: ...


def test_a_dropped_test_is_refused_unless_it_is_an_xfail_with_a_reason() -> None:
    with pytest.raises(TypeError, match="Silent overrides test_at_once of its contract; mark it"):

        class Silent(Contract):
            def test_at_once(self) -> None: ...

    with pytest.raises(TypeError, match="overrides test_in_its_time"):

        class NoReason(Contract):
            @pytest.mark.xfail
            async def test_in_its_time(self) -> None: ...

    class Said(Contract):
        @pytest.mark.xfail(reason="it never ends")
        def test_at_once(self) -> None: ...

        def test_of_its_own(self) -> None: ...


def test_only_coroutine_tests_are_marked_for_the_loop() -> None:
    marked = {
        name
        for name, test in vars(Contract).items()
        if "asyncio" in {m.name for m in getattr(test, "pytestmark", ())}
    }
    assert marked == {"test_in_its_time"}


def test_options_are_made_as_from_a_job_file() -> None:
    class Mine(Contract):
        options = {"words": 3}  # noqa: RUF012 - it is never changed

    class Wrong(Contract):
        options = {"word": 3, "words": "many"}  # noqa: RUF012 - it is never changed

    assert Mine().made_options() == Options(words=3)
    assert Contract().made_options() == Options()
    with pytest.raises(ConfigError) as refused:
        Wrong().made_options()
    assert str(refused.value).startswith("Wrong.options: word: is not a known key")
    assert [problem.key for problem in refused.value.problems] == ["word", "words"]
