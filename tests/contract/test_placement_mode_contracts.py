"""The first-party placement modes keep the contract of their kind."""

from __future__ import annotations

from rolecall.testing import PlacementModeContract
from rolecall_placement.decoupled import Decoupled
from rolecall_placement.defer import Defer
from rolecall_placement.split import Split


class TestDecoupled(PlacementModeContract):
    plugin = Decoupled


class TestSplit(PlacementModeContract):
    plugin = Split


class TestDefer(PlacementModeContract):
    plugin = Defer
