"""Which roles a schedule has, on which devices, and what a batch does with them."""

from __future__ import annotations

from attrs import frozen

from rolecall.engines.worker_handle import WorkerSlot
from rolecall.ids import EngineId, ModelId, RoleName, engine_id
from rolecall.interfaces.role import WeightSource

MAKER, JUDGE, TEACHER, TRAINER = (RoleName(name) for name in ("maker", "judge", "teacher", "trainer"))


@frozen(kw_only=True)
class RoleShape:
    """One role: the devices of each of its replicas' workers, the head's first."""

    name: RoleName
    replicas: tuple[tuple[str, ...], ...]
    source: WeightSource = WeightSource.STATIC

    @property
    def devices(self) -> frozenset[str]:
        return frozenset(device for replica in self.replicas for device in replica)

    def engine(self, index: int) -> EngineId:
        return engine_id(model_of(self), index)


def model_of(role: RoleShape) -> ModelId:
    return ModelId(f"{role.name}-model")


def slot_of(role: RoleShape, index: int, rank: int | None = None) -> WorkerSlot:
    """The place of one worker of a replica; without ``rank`` that of one worker for all of its devices."""
    devices = role.replicas[index]
    mine = devices if rank is None else devices[rank : rank + 1]
    return WorkerSlot(
        engine=role.engine(index),
        node_rank=rank or 0,
        node_id=f"node-{mine[0]}",
        node_ip=f"10.0.0.{mine[0]}",
        pool_id="shared",
        bundles=tuple(map(int, mine)),
        device_ids=mine,
        nodes=1 if rank is None else len(devices),
    )


@frozen(kw_only=True)
class Layout:
    """The roles of a job; ``trainer`` are the devices that the trainer takes turns on."""

    name: str
    roles: tuple[RoleShape, ...]
    trainer: frozenset[str] = frozenset()

    @property
    def conflicts(self) -> dict[RoleName, frozenset[RoleName]]:
        devices = {role.name: role.devices for role in self.roles}
        if self.trainer:
            devices[TRAINER] = self.trainer
        return {
            name: frozenset(other for other in devices if other != name and devices[other] & mine)
            for name, mine in devices.items()
        }


def _role(name: RoleName, *replicas: str, source: WeightSource = WeightSource.STATIC) -> RoleShape:
    """``"0"`` is a replica on device 0, ``"01"`` one whose two workers are on devices 0 and 1."""
    return RoleShape(name=name, replicas=tuple(tuple(replica) for replica in replicas), source=source)


_ACTOR = WeightSource.ACTOR

LAYOUTS = (
    Layout(name="two in turn", roles=(_role(MAKER, "0", source=_ACTOR), _role(JUDGE, "0"))),
    Layout(name="static in turn", roles=(_role(MAKER, "0"), _role(JUDGE, "0"))),
    Layout(
        name="three in turn",
        roles=(_role(MAKER, "0", source=_ACTOR), _role(JUDGE, "0"), _role(TEACHER, "0")),
    ),
    Layout(
        name="halves",
        roles=(_role(MAKER, "0", "1", source=_ACTOR), _role(JUDGE, "0"), _role(TEACHER, "1")),
    ),
    Layout(
        name="one resident",
        roles=(_role(MAKER, "0", source=_ACTOR), _role(JUDGE, "1"), _role(TEACHER, "0")),
    ),
    Layout(
        name="two replicas",
        roles=(_role(MAKER, "0", source=_ACTOR), _role(JUDGE, "0", "1"), _role(TEACHER, "1")),
    ),
    Layout(name="two nodes", roles=(_role(MAKER, "01", source=_ACTOR), _role(JUDGE, "0"))),
    Layout(
        name="trainer in turn",
        roles=(_role(MAKER, "0", source=_ACTOR), _role(JUDGE, "0")),
        trainer=frozenset("0"),
    ),
)
