"""SGLang's server flags: which of them are rolecall's, and how the others become arguments.

Pure. Keys are SGLang's flag names with underscores, as in ``engine_options.server_args``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Set
from typing import Any

_PORTS = "comes from the node's port allocator"
_LAUNCH = "is set by rolecall"

OWNED: Mapping[str, str] = {
    "host": "is decided by rolecall: an engine that sleeps listens behind its guard",
    "port": _PORTS,
    "nccl_port": _PORTS,
    "dist_init_addr": f"{_PORTS} of the head's node",
    "nccl_init_addr": f"{_PORTS} of the head's node",
    "disaggregation_bootstrap_port": _PORTS,
    "nnodes": "follows from devices_per_engine and placement.devices_per_node",
    "node_rank": "follows from the placement",
    "base_gpu_id": "follows from the placement: the engine sees its own devices only",
    "gpu_id_step": "follows from the placement: the engine sees its own devices only",
    "model_path": 'is the model\'s "source"',
    "model": 'is the model\'s "source"',
    "served_model_name": 'is the model\'s "served_model_name"',
    "tp_size": 'is the model\'s "tensor_parallel"',
    "tensor_parallel_size": 'is the model\'s "tensor_parallel"',
    "tp": 'is the model\'s "tensor_parallel"',
    "pp_size": 'is the model\'s "pipeline_parallel"',
    "pipeline_parallel_size": 'is the model\'s "pipeline_parallel"',
    "pp": 'is the model\'s "pipeline_parallel"',
    "data_parallel_size": 'is written "dp_size"',
    "dp": 'is written "dp_size"',
    "device": 'is the option "device"',
    "enable_memory_saver": 'is the option "memory_saver"',
    "enable_weights_cpu_backup": 'is the option "weights_while_asleep"',
    "custom_weight_loader": f"{_LAUNCH}: its weights holder is one",
    "weight_version": f"{_LAUNCH}: it counts weight updates",
    "disaggregation_mode": f"{_LAUNCH} for prefill/decode pairs",
    "api_key": f"{_LAUNCH}: engines are reached through rolecall only",
    "admin_api_key": f"{_LAUNCH}: engines are reached through rolecall only",
    "ssl_keyfile": "is not for engines: they are reached over loopback",
    "ssl_certfile": "is not for engines: they are reached over loopback",
    "use_ray": "is not for engines of rolecall, which places them itself",
    "grpc_mode": "is not for engines of rolecall, which speaks HTTP to them",
    "smg_grpc_mode": "is not for engines of rolecall, which speaks HTTP to them",
    "config": "would hide flags from rolecall's checks; write them into server_args",
    "skip_tokenizer_init": "is not for engines of rolecall, whose roles send text, too",
    "fastapi_root_path": "would move the paths that rolecall calls",
}
"""Flags that ``server_args`` may not set, and where each comes from."""


def refused_flags(server_args: Mapping[str, Any]) -> list[str]:
    """Say what is wrong with each key and value, as far as it can be told without SGLang."""
    problems: list[str] = []
    for key, value in server_args.items():
        plain = key.lstrip("-").replace("-", "_")
        if plain in OWNED:
            problems.append(f'has "{key}", which {OWNED[plain]}; remove it')
        elif plain != key:
            problems.append(f'has "{key}"; write it as "{plain}"')
        elif isinstance(value, list) and not value:
            problems.append(f'has "{key}" with an empty list; leave it away')
    return problems


def flag_of(key: str) -> str:
    """Return a key of ``server_args`` as it is written on the command line."""
    return "--" + key.replace("_", "-")


def as_arguments(server_args: Mapping[str, Any], known: Set[str]) -> list[str]:
    """Return the flags as command-line arguments, in their order.

    ``known`` are the flags that SGLang takes. ``false`` becomes ``--no-flag`` where there is one, and
    otherwise nothing, since a flag without value is off unless it is given.
    """
    arguments: list[str] = []
    for key, value in server_args.items():
        if value is not False:
            arguments += [flag_of(key), *_values(value)]
        elif (opposite := flag_of(f"no_{key}")) in known:
            arguments.append(opposite)
    return arguments


def _values(value: Any) -> Iterable[str]:
    if value is True:
        return []
    if isinstance(value, Mapping):
        return [json.dumps(value)]
    if isinstance(value, list | tuple):
        return [str(item) for item in value]
    return [str(value)]
