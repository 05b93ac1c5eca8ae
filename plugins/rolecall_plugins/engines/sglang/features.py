"""What an engine can do under its options. Pure: SGLang need not be installed where this runs."""

from __future__ import annotations

from typing import Any

from rolecall.api import UPDATE_CAPABILITY, Capability, EngineFeatures, MemoryTag

from .options import Device, SglangOptions, WeightsAsleep

_RELOADABLE = ("auto", "safetensors", "pt", "npcache")
"""Load formats that SGLang can load into a running engine."""


def features_of(options: SglangOptions, *, static: bool) -> EngineFeatures:
    """Answer for ``EngineBackend.features``."""
    can = {Capability.SEVERAL_NODES, Capability.DISAGGREGATION}
    if not static:
        can |= set(UPDATE_CAPABILITY.values())
        if options.data_parallel > 1:
            can -= {Capability.UPDATE_FROM_TENSORS, Capability.UPDATE_FROM_GROUP}
    no_sleep_because = _no_sleep_because(options)
    if not no_sleep_because:
        can.add(Capability.SLEEP)
    return EngineFeatures(
        capabilities=frozenset(can),
        memory_tags=_memory_tags(options),
        no_sleep_because=no_sleep_because,
        sleep_options=_sleep_options(options) if no_sleep_because else (),
        attention_groups=options.groups,
        attention_groups_key=f"server_args.{options.groups_flag}",
        problems=tuple(_problems(options, static=static)),
    )


def _memory_tags(options: SglangOptions) -> frozenset[MemoryTag]:
    if options.device is Device.CPU:
        return frozenset({MemoryTag.WEIGHTS})
    return frozenset(MemoryTag)


def _no_sleep_because(options: SglangOptions) -> str:
    if options.device is Device.CUDA and not options.memory_saver:
        return "engine_options.memory_saver is false; SGLang gives memory back with its memory saver only"
    if options.device is Device.CPU and options.data_parallel > 1:
        return (
            "SGLang gives no way to free the weights of data-parallel replicas on a CPU; "
            "leave engine_options.server_args.dp_size away and raise the model's replicas"
        )
    return ""


def _sleep_options(options: SglangOptions) -> tuple[tuple[str, Any], ...]:
    return (("memory_saver", True),) if options.device is Device.CUDA else (("server_args.dp_size", None),)


def _problems(options: SglangOptions, *, static: bool) -> list[str]:
    found: list[str] = []
    asleep, load_format = options.weights_asleep, options.server_args.get("load_format", "auto")
    if static and load_format == "dummy":
        found.append(
            'server_args.load_format = "dummy" gives random weights, but this model\'s weights never '
            "change, so they would stay random; leave it away"
        )
    if options.device is Device.CPU and asleep is not WeightsAsleep.RELOAD:
        found.append(
            f'weights_while_asleep = "{asleep.value}" needs device = "cuda"; a CPU engine frees its weights '
            'and loads them again: "reload"'
        )
    if asleep is WeightsAsleep.HOST_COPY and options.data_parallel > 1:
        found.append(
            f'weights_while_asleep = "host_copy" with server_args.dp_size = {options.data_parallel}: SGLang '
            'gives no way to copy weights into data-parallel replicas; use "memory_saver" or "reload"'
        )
    if (
        asleep is WeightsAsleep.RELOAD
        and load_format not in _RELOADABLE
        and (static or load_format != "dummy")
    ):
        found.append(
            f'weights_while_asleep = "reload" with server_args.load_format = "{load_format}": SGLang loads '
            f'only {", ".join(_RELOADABLE)} into a running engine; use "host_copy" or "memory_saver"'
        )
    return found
