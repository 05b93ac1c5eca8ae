"""Placement as values: what a job asks for, and which bundles each replica gets.

Pure and immutable: no Ray, no device, no network. A *device* is one unit of the pool's Ray
resource (a GPU or a custom resource); a *bundle* is the placement-group bundle that holds one
device; bundles of a pool are numbered from 0 and laid out node by node.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import frozen

from rolecall.ids import EngineId, ModelId, RoleName
from rolecall.placement.nodes import Nodes

REFERENCE_RESERVATION = 1.0
"""Device share that all actors on one bundle may reserve together."""


def reservation_share(tenants: int) -> float:
    """Device share that each of ``tenants`` actors reserves on one bundle.

    The one formula for the planner and for the code that makes the actors; ``tenants`` shares
    sum to at most ``REFERENCE_RESERVATION``. 0.0 when there are too many tenants for Ray to
    tell their shares apart.
    """
    if tenants <= 1:
        return REFERENCE_RESERVATION
    # Ray keeps four decimals: round down, or the last tenant never fits.
    return int(REFERENCE_RESERVATION / tenants * 10_000) / 10_000


@frozen(kw_only=True)
class ModelDemand:
    """What one model needs: ``replicas`` engines of ``devices_per_engine`` devices each."""

    model: ModelId
    replicas: int
    devices_per_engine: int
    tensor_parallel: int
    pipeline_parallel: int

    @property
    def devices(self) -> int:
        return self.replicas * self.devices_per_engine


@frozen(kw_only=True)
class RoleDemand:
    """What one role needs; ``deferrable`` is the role plugin's word, ``devices`` the budget."""

    role: RoleName
    models: tuple[ModelDemand, ...]
    deferrable: bool
    devices: int | None = None

    @property
    def needed(self) -> int:
        return sum(model.devices for model in self.models)


@frozen(kw_only=True)
class TrainingDemand:
    """What one role of the trainer needs; rolecall starts none of its processes.

    offload: it gives its device memory up whenever roles that share its devices are awake.
    on: the training role whose devices and processes it uses; None for one of its own. Roles in one
        process share devices among themselves as they like.
    """

    role: RoleName
    devices: int
    offload: bool = False
    on: RoleName | None = None

    @property
    def process(self) -> RoleName:
        """The role that its processes are named after."""
        return self.on or self.role


@frozen(kw_only=True)
class PlacementJob:
    """Input of a placement mode.

    nodes: those that the job has; without end if the job file does not say how many devices there are, only
        how many a node has.
    per_node: devices of each node, the last one's perhaps short of that; None if the job file lists its
        nodes.
    """

    resource: str
    nodes: Nodes
    roles: tuple[RoleDemand, ...]
    training: tuple[TrainingDemand, ...] = ()
    per_node: int | None = None

    @property
    def devices(self) -> int | None:
        """Devices that the job has; None if its file does not say."""
        return self.nodes.devices

    @property
    def largest_node(self) -> int:
        """Devices of a whole node, the largest one where they differ; the job may have less than one."""
        return self.per_node or self.nodes.largest

    @property
    def processes(self) -> tuple[TrainingDemand, ...]:
        """The training roles that have devices and processes of their own."""
        return tuple(demand for demand in self.training if demand.on is None)


@frozen(kw_only=True)
class Pool:
    """One placement group: a bundle of one device for each device of ``nodes``, which have an end."""

    pool_id: str
    resource: str
    nodes: Nodes

    @property
    def devices(self) -> int:
        return self.nodes.devices or 0


@frozen(kw_only=True)
class TrainingPlacement:
    """The bundles of one training role, ascending. ``process``: whose processes it uses, its own name or
    another training role's, whose bundles include these."""

    role: RoleName
    process: RoleName
    pool_id: str
    bundles: tuple[int, ...]


@frozen(kw_only=True)
class ReplicaPlacement:
    """The bundles of one logical replica, ascending; a worker a node it spans."""

    engine: EngineId
    role: RoleName
    model: ModelId
    pool_id: str
    bundles: tuple[int, ...]


Tenant = ReplicaPlacement | TrainingPlacement
"""Who may occupy a bundle."""


@frozen(kw_only=True)
class Phase:
    """Roles, of inference and of training, that may be awake at the same time."""

    name: str
    roles: tuple[RoleName, ...]


@frozen(kw_only=True)
class PlacementPlan:
    """The whole job's layout, in the order roles stand in the job file."""

    mode: str
    pools: tuple[Pool, ...]
    replicas: tuple[ReplicaPlacement, ...]
    phases: tuple[Phase, ...]
    training: tuple[TrainingPlacement, ...] = ()

    @property
    def everybody(self) -> tuple[Tenant, ...]:
        """All tenants, replicas first."""
        return (*self.replicas, *self.training)

    def replicas_of(self, role: RoleName) -> tuple[ReplicaPlacement, ...]:
        return tuple(replica for replica in self.replicas if replica.role == role)

    def bundles_of(self, role: RoleName) -> frozenset[tuple[str, int]]:
        """All (pool, bundle) pairs that a role occupies, one of inference or of training."""
        return frozenset(
            (tenant.pool_id, bundle)
            for tenant in self.everybody
            if tenant.role == role
            for bundle in tenant.bundles
        )

    def conflicts(self, role: RoleName) -> frozenset[RoleName]:
        """Roles that share a bundle with ``role`` and so must be asleep while it is awake.

        Training roles in one process are none of each other's: they share as their trainer likes.
        """
        mine = self.bundles_of(role)
        process = {tenant.role: tenant.process for tenant in self.training}
        others = {tenant.role for tenant in self.everybody} - {role}
        return frozenset(
            other
            for other in others
            if mine & self.bundles_of(other) and process.get(other, other) != process.get(role, role)
        )

    def tenants(self, pool_id: str, bundle: int) -> tuple[Tenant, ...]:
        return tuple(
            tenant for tenant in self.everybody if tenant.pool_id == pool_id and bundle in tenant.bundles
        )

    def reservation(self, pool_id: str, bundle: int) -> float:
        """Device share that each actor reserves on a bundle; the shares sum to ≤ 1."""
        return reservation_share(actors(self.tenants(pool_id, bundle)))


def actors(tenants: Iterable[Tenant]) -> int:
    """Return how many Ray actors the tenants of one bundle are: one a replica, one a training process."""
    processes: set[RoleName] = set()
    replicas = 0
    for tenant in tenants:
        if isinstance(tenant, ReplicaPlacement):
            replicas += 1
        else:
            processes.add(tenant.process)
    return replicas + len(processes)
