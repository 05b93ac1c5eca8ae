"""The devices of the trainer's roles, as a training loop in any process gets them.

Pure values, kept with the job's state; Ray is only needed where an actor is made of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from rolecall.errors import ClusterError
from rolecall.placement.bound import BoundPlan


@frozen(kw_only=True)
class TrainingDevice:
    """One device of a training role; the trainer starts one actor on it.

    role: the training role; processes of several roles have the name of the one they belong to.
    rank: counts the role's devices, node by node.
    group, bundle: name of the placement group, and the bundle in it.
    resource, reservation: Ray resource of the device, and the share of it that the actor reserves.
    device_id: physical id; only a number where Ray gives none (any resource but ``GPU``).
    """

    role: str
    rank: int
    group: str
    bundle: int
    resource: str
    reservation: float
    node_id: str
    node_ip: str
    device_id: str

    def actor_options(self) -> dict[str, Any]:
        """Return what to pass to an actor's ``.options(**...)`` to start it on this device.

        Raises:
            ClusterError: the job's placement group is gone.
        """
        # The command line reads these values without Ray.
        from rolecall.cluster.ray_groups import RayGroups
        from rolecall.cluster.scheduling import in_bundle

        group = RayGroups().find(self.group)
        if group is None:
            raise ClusterError(
                f"{self.role}'s placement group {self.group} is not on this Ray; did the job end?"
            )
        return in_bundle(group, self.bundle, self.resource, self.reservation)


def training_devices(bound: BoundPlan, groups: Mapping[str, str]) -> tuple[TrainingDevice, ...]:
    """Return the devices of all processes of the trainer; ``groups`` names each pool's placement group."""
    resources = {pool.pool_id: pool.resource for pool in bound.plan.pools}
    return tuple(
        TrainingDevice(
            role=training.placement.role,
            rank=rank,
            group=groups[training.placement.pool_id],
            bundle=device.bundle,
            resource=resources[training.placement.pool_id],
            reservation=device.reservation,
            node_id=device.node_id,
            node_ip=device.node_ip,
            device_id=device.device_id,
        )
        for training in bound.training
        if training.placement.process == training.placement.role
        for rank, device in enumerate(training.devices)
    )
