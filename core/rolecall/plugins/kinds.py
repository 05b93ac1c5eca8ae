"""The seven kinds of plugin: how each is called, where it is registered, which hook it implements.

The only place that pairs a kind with its entry-point group and its hook. A kind is added here,
in ``hookspecs`` and in ``contract``; a test keeps the three equal.
"""

from __future__ import annotations

from enum import Enum


class PluginKind(Enum):
    """A kind of plugin, in the order in which listings show them.

    Attributes:
        label: the kind in words, for people.
        key: the kind as one word, for command lines and block lists.
        group: entry-point group in which plugins of the kind are registered.
        hook: name of the function that a plugin's module implements.
    """

    ROLE = ("role", "rolecall.roles", "rolecall_role")
    ROUTING_POLICY = ("routing policy", "rolecall.routing_policies", "rolecall_routing_policy")
    PLACEMENT_MODE = ("placement mode", "rolecall.placement_modes", "rolecall_placement_mode")
    REWARD_ADAPTER = ("reward adapter", "rolecall.reward_adapters", "rolecall_reward_adapter")
    ENGINE_BACKEND = ("engine backend", "rolecall.engine_backends", "rolecall_engine_backend")
    BATCH_SINK = ("batch sink", "rolecall.batch_sinks", "rolecall_batch_sink")
    OBSERVER = ("observer", "rolecall.observers", "rolecall_observer")

    def __init__(self, label: str, group: str, hook: str) -> None:
        self.label = label
        self.key = label.replace(" ", "_")
        self.group = group
        self.hook = hook
