"""What was found in the bundles, and the plan on it: values only.

Made by :mod:`rolecall.placement.binding`; read by whatever starts actors on the bundles.
"""

from __future__ import annotations

from attrs import frozen

from rolecall.ids import RoleName
from rolecall.placement.plan import PlacementPlan, ReplicaPlacement, TrainingPlacement

NAMED_DEVICES = "GPU"
"""The Ray resource whose devices Ray gives ids; all others are numbered when the plan is bound."""


@frozen(kw_only=True)
class BundleProbe:
    """What was found in one bundle of a pool's placement group.

    ``bundle`` is the group's own index. ``device_ids`` are physical ids as text, exactly one;
    empty where Ray knows no ids for the resource.
    """

    pool_id: str
    bundle: int
    node_id: str
    node_ip: str
    device_ids: tuple[str, ...]


@frozen(kw_only=True)
class BoundWorker:
    """A replica's part on one node.

    ``bundles`` are indices of the real placement group, the i-th holding device
    ``device_ids[i]``; the worker's actor belongs in the first. ``reservation`` is the share of
    that bundle's device that the actor reserves.
    """

    node_id: str
    node_ip: str
    bundles: tuple[int, ...]
    device_ids: tuple[str, ...]
    reservation: float


@frozen(kw_only=True)
class BoundReplica:
    """A replica on real devices; workers in node-rank order, the first is the head."""

    placement: ReplicaPlacement
    workers: tuple[BoundWorker, ...]


@frozen(kw_only=True)
class BoundDevice:
    """One device of a training role, and its bundle in the real placement group.

    ``reservation`` is the share of the device that the trainer's actor there reserves.
    """

    node_id: str
    node_ip: str
    bundle: int
    device_id: str
    reservation: float


@frozen(kw_only=True)
class BoundTraining:
    """A training role on real devices, the i-th for the i-th bundle of its placement."""

    placement: TrainingPlacement
    devices: tuple[BoundDevice, ...]


@frozen(kw_only=True)
class BoundPlan:
    """A plan with every replica and every training role bound, in the plan's order.

    spare: the devices that no tenant of the plan ever uses, each as found in its bundle.
    """

    plan: PlacementPlan
    replicas: tuple[BoundReplica, ...]
    training: tuple[BoundTraining, ...] = ()
    spare: tuple[BundleProbe, ...] = ()

    def replicas_of(self, role: RoleName) -> tuple[BoundReplica, ...]:
        return tuple(replica for replica in self.replicas if replica.placement.role == role)
