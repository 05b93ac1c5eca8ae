"""The first-party routing policies keep the contract of their kind."""

from __future__ import annotations

from rolecall.testing import RoutingPolicyContract
from rolecall_routing.affinity import Affinity
from rolecall_routing.round_robin import RoundRobin
from rolecall_routing.sglang_router import SglangRouterPolicy


class TestRoundRobin(RoutingPolicyContract):
    plugin = RoundRobin


class TestAffinity(RoutingPolicyContract):
    plugin = Affinity


class TestSglangRouter(RoutingPolicyContract):
    plugin = SglangRouterPolicy
