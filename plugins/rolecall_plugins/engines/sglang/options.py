"""The options of a model served by SGLang, checked as far as they can be without SGLang."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from attrs import Attribute, field, frozen

from .server_flags import refused_flags

_OWNED_VARIABLES = {
    "CUDA_VISIBLE_DEVICES": "the placement decides which devices an engine sees",
    "ROLECALL_HOLDER_DIR": "rolecall keeps its reports there",
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "rolecall looks at /health without running a token",
}


class Device(StrEnum):
    """Kind of device that an engine computes on."""

    CUDA = "cuda"
    CPU = "cpu"


class WeightsAsleep(StrEnum):
    """Where an engine's weights come from when it wakes."""

    HOST_COPY = "host_copy"
    MEMORY_SAVER = "memory_saver"
    RELOAD = "reload"


def _no_owned_flag(_: Any, attribute: Attribute[Any], value: Mapping[str, Any]) -> None:
    if problems := refused_flags(value):
        raise ValueError(f"{attribute.name} {'; '.join(problems)}")


def _no_owned_variable(_: Any, attribute: Attribute[Any], value: Mapping[str, str]) -> None:
    for name in value:
        if name in _OWNED_VARIABLES:
            raise ValueError(f"{attribute.name} sets {name}, but {_OWNED_VARIABLES[name]}; remove it")


@frozen(kw_only=True)
class SglangOptions:
    """``engine_options`` of a model served by SGLang.

    python: interpreter whose environment has SGLang, a path; the present one if left out. So SGLang may
        live in an environment of its own, without rolecall.
    device: what the engine computes on: ``cuda`` or ``cpu``.
    server_args: SGLang's own flags, with underscores for dashes: ``mem_fraction_static = 0.8``. ``true``
        gives a flag without value, ``false`` leaves it away, a list gives several values, a table JSON.
        Flags that rolecall sets are refused here, flags that SGLang does not know before it starts.
    environment: further variables of the engine's process.
    memory_saver: let a CUDA engine give its memory back (``--enable-memory-saver``); without it the
        engine can't sleep. A CPU engine has no saver: it frees its weights alone.
    weights_while_asleep: where the weights are while the engine sleeps. ``host_copy``: in pinned host
        memory that rolecall fills once (static) or after each update (versioned), and nothing is copied
        on the way to sleep. ``memory_saver``: SGLang's own backup, copied on each sleep. ``reload``:
        nowhere; read again from the checkpoint. If left out: ``reload`` on a CPU, on CUDA ``host_copy``, or
        ``memory_saver`` with data-parallel replicas, which SGLang gives no way to copy into.
    """

    python: str | None = None
    device: Device = Device.CUDA
    server_args: Mapping[str, Any] = field(factory=dict[str, Any], validator=_no_owned_flag)
    environment: Mapping[str, str] = field(factory=dict[str, str], validator=_no_owned_variable)
    memory_saver: bool = True
    weights_while_asleep: WeightsAsleep | None = None

    @property
    def saves_memory(self) -> bool:
        """Whether the engine runs with SGLang's memory saver."""
        return self.memory_saver and self.device is Device.CUDA

    @property
    def weights_asleep(self) -> WeightsAsleep:
        """Where the weights are while the engine sleeps, with the device's default."""
        if self.weights_while_asleep is not None:
            return self.weights_while_asleep
        if self.device is Device.CPU:
            return WeightsAsleep.RELOAD
        return WeightsAsleep.HOST_COPY if self.data_parallel == 1 else WeightsAsleep.MEMORY_SAVER

    @property
    def data_parallel(self) -> int:
        """Whole copies of the model in one engine; attention-only data parallelism makes none."""
        attention_only = self.server_args.get("enable_dp_attention") or self._number("attn_dp_size") > 1
        return 1 if attention_only else self._number("dp_size")

    @property
    def groups_flag(self) -> str:
        """The flag that divides the devices of tensor_parallel into groups."""
        return "attn_dp_size" if self._number("attn_dp_size") > 1 else "dp_size"

    @property
    def groups(self) -> int:
        """Groups that the devices of tensor_parallel are divided into: of the attention, or whole copies."""
        return self._number(self.groups_flag)

    def _number(self, flag: str) -> int:
        value = self.server_args.get(flag, 1)
        return value if isinstance(value, int) else 1
