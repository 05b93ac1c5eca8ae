"""The first-party observers keep the contract of their kind."""

from __future__ import annotations

from rolecall.testing import ObserverContract
from rolecall_plugins.observers.console_log import ConsoleLog


class TestConsoleLog(ObserverContract):
    plugin = ConsoleLog
