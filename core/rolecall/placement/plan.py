"""Placement as values: what a job asks for, and which bundles each replica gets.

Pure and immutable: no Ray, no device, no network. A *device* is one unit of the pool's Ray
resource (a GPU or a custom resource); a *bundle* is the placement-group bundle that holds one
device; bundles of a pool are numbered from 0 and laid out node by node.
"""

from __future__ import annotations

from attrs import frozen

from rolecall.ids import EngineId, ModelId, RoleName

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
class PlacementJob:
    """Input of a placement mode. ``pool_devices`` is the shared pool, None if the job has none."""

    resource: str
    devices_per_node: int
    pool_devices: int | None
    roles: tuple[RoleDemand, ...]


@frozen(kw_only=True)
class Pool:
    """One placement group: ``devices`` bundles of one device each."""

    pool_id: str
    resource: str
    devices: int
    devices_per_node: int


@frozen(kw_only=True)
class ReplicaPlacement:
    """The bundles of one logical replica, ascending; a worker a node it spans."""

    engine: EngineId
    role: RoleName
    model: ModelId
    pool_id: str
    bundles: tuple[int, ...]


@frozen(kw_only=True)
class Phase:
    """Roles that may be awake at the same time."""

    name: str
    roles: tuple[RoleName, ...]


@frozen(kw_only=True)
class PlacementPlan:
    """The whole job's layout, in the order roles stand in the job file."""

    mode: str
    pools: tuple[Pool, ...]
    replicas: tuple[ReplicaPlacement, ...]
    phases: tuple[Phase, ...]

    def replicas_of(self, role: RoleName) -> tuple[ReplicaPlacement, ...]:
        return tuple(replica for replica in self.replicas if replica.role == role)

    def bundles_of(self, role: RoleName) -> frozenset[tuple[str, int]]:
        """All (pool, bundle) pairs that a role's replicas occupy."""
        return frozenset(
            (replica.pool_id, bundle) for replica in self.replicas_of(role) for bundle in replica.bundles
        )

    def conflicts(self, role: RoleName) -> frozenset[RoleName]:
        """Roles that share a bundle with ``role`` and so must be asleep while it is awake."""
        mine = self.bundles_of(role)
        others = {replica.role for replica in self.replicas} - {role}
        return frozenset(other for other in others if mine & self.bundles_of(other))

    def tenants(self, pool_id: str, bundle: int) -> tuple[ReplicaPlacement, ...]:
        return tuple(r for r in self.replicas if r.pool_id == pool_id and bundle in r.bundles)

    def reservation(self, pool_id: str, bundle: int) -> float:
        """Device share that each tenant's actor reserves on a bundle; the shares sum to ≤ 1."""
        return reservation_share(len(self.tenants(pool_id, bundle)))
