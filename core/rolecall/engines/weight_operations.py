"""Every operation that could change a model's weights, and the one door that lets it pass or not.

Static weights never change: all operations of the table are refused for them, by name. For
versioned models the table says what rolecall offers at all, and the backend's features say what its
engines can do. Pure; the inference manager asks before anything else happens.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from attrs import frozen

from rolecall.errors import CapabilityError
from rolecall.interfaces.engine_backend import Capability, FromDisk, FromGroup, FromTensors, WeightUpdate
from rolecall.interfaces.role import WeightSource


class WeightOperation(StrEnum):
    """Names are those that refusals use."""

    UPDATE_FROM_DISK = "weight update from disk"
    UPDATE_FROM_TENSORS = "weight update from tensors"
    UPDATE_FROM_GROUP = "weight update from a distributed group"
    JOIN_GROUP = "joining a weight group"
    LEAVE_GROUP = "leaving a weight group"
    REMOTE_SEND = "sending weights to a remote engine"
    LORA_LOAD = "loading a LoRA adapter"
    LORA_UPDATE = "updating a LoRA adapter"
    LORA_UNLOAD = "unloading a LoRA adapter"
    DCS_REGISTRATION = "registration with a distributed checkpoint service"
    SEED_SYNC = "synchronising a seed engine"


NEEDS: Mapping[WeightOperation, Capability | None] = {
    WeightOperation.UPDATE_FROM_DISK: Capability.UPDATE_FROM_DISK,
    WeightOperation.UPDATE_FROM_TENSORS: Capability.UPDATE_FROM_TENSORS,
    WeightOperation.UPDATE_FROM_GROUP: Capability.UPDATE_FROM_GROUP,
    WeightOperation.JOIN_GROUP: Capability.UPDATE_FROM_GROUP,
    WeightOperation.LEAVE_GROUP: Capability.UPDATE_FROM_GROUP,
    WeightOperation.REMOTE_SEND: None,
    WeightOperation.LORA_LOAD: None,
    WeightOperation.LORA_UPDATE: None,
    WeightOperation.LORA_UNLOAD: None,
    WeightOperation.DCS_REGISTRATION: None,
    WeightOperation.SEED_SYNC: None,
}
"""What a backend must be able to do for each operation; None: rolecall does not offer it."""

_OPERATION_OF: Mapping[type[Any], WeightOperation] = {
    FromDisk: WeightOperation.UPDATE_FROM_DISK,
    FromTensors: WeightOperation.UPDATE_FROM_TENSORS,
    FromGroup: WeightOperation.UPDATE_FROM_GROUP,
}


@frozen(kw_only=True)
class WeightRights:
    """What may be done to the weights of one model; ``name`` is how refusals call it."""

    name: str
    weight_source: WeightSource
    capabilities: frozenset[Capability]

    def require(self, operation: WeightOperation) -> None:
        """Let an allowed operation pass.

        Raises:
            CapabilityError: names the operation, and why this model does not take it.
        """
        if self.weight_source is WeightSource.STATIC:
            raise CapabilityError(
                f"{self.name}: {operation} is refused, its weights are {WeightSource.STATIC} and never change"
            )
        needed = NEEDS[operation]
        if needed is None:
            offered = ", ".join(each for each, capability in NEEDS.items() if capability is not None)
            raise CapabilityError(f"{self.name}: {operation} is not offered; there is: {offered}")
        if needed not in self.capabilities:
            can = sorted(each for each, capability in NEEDS.items() if capability in self.capabilities)
            raise CapabilityError(
                f"{self.name}: its engine backend can't do {operation}; it can do: {', '.join(can) or 'none'}"
            )


def operation_of(update: WeightUpdate) -> WeightOperation:
    """Return which operation an update is."""
    return _OPERATION_OF[type(update)]
