"""What every plugin has to do, whatever its kind; the contracts of the kinds inherit it.

    class TestSticky(RoutingPolicyContract):
        plugin = Sticky

A contract's tests may not be dropped in silence: a class that overrides one has to mark its own with
``pytest.mark.xfail(reason=...)``, so that what it does not keep is seen in every report. Its coroutine tests,
and an author's beside them, run under pytest-asyncio in either mode: no configuration is needed.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pytest

from rolecall.config.source import Source
from rolecall.config.structure import StructureError, structure
from rolecall.plugins.host import PluginHost
from rolecall.plugins.kinds import PluginKind


class PluginContract:
    """Base of the contract classes.

    Attributes:
        kind: set by the contract of each kind.
        plugin: the plugin's class, as its hook returns it.
        options: the plugin's table as it would stand in a job file; for kinds that take options.
    """

    kind: ClassVar[PluginKind]
    plugin: ClassVar[type[Any]]
    options: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        dropped = [name for name in _overridden_tests(cls) if not _has_reason(vars(cls)[name])]
        if dropped:
            raise TypeError(
                f"{cls.__qualname__} overrides {', '.join(dropped)} of its contract; "
                "mark it with @pytest.mark.xfail(reason=...), or leave the contract's test as it is"
            )
        for name in list(_unmarked_coroutine_tests(cls)):
            setattr(cls, name, pytest.mark.asyncio(vars(cls)[name]))

    def made_options(self) -> Any:
        """Return ``options`` as the plugin would get them from a job file.

        Raises:
            ConfigError: the table does not fit the plugin's ``options`` class; with every fault of it.
        """
        try:
            return structure(self.plugin.options, self.options)
        except StructureError as error:
            raise Source(file=f"{type(self).__name__}.options").error(error.faults) from error

    def test_its_entry_point_leads_to_it(self) -> None:
        """The installed plugin of its name and kind loads, keeps the rules, and is this class."""
        assert PluginHost.from_environment().load(self.kind, self.plugin.name) is self.plugin


def _overridden_tests(cls: type[PluginContract]) -> Iterator[str]:
    for name in vars(cls):
        if name.startswith("test") and any(name in vars(base) for base in cls.__mro__[1:]):
            yield name


def _has_reason(test: object) -> bool:
    return any(mark.name == "xfail" and mark.kwargs.get("reason") for mark in _marks(test))


def _unmarked_coroutine_tests(cls: type[PluginContract]) -> Iterator[str]:
    for name, test in vars(cls).items():
        is_test = name.startswith("test") and inspect.iscoroutinefunction(test)
        if is_test and not any(mark.name == "asyncio" for mark in _marks(test)):
            yield name


def _marks(test: object) -> list[pytest.Mark]:
    return getattr(test, "pytestmark", [])
