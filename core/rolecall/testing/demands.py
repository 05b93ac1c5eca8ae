"""What a role demands of a placement, in the few words that tests of layouts need."""

from __future__ import annotations

from rolecall.ids import ModelId, RoleName
from rolecall.placement.plan import ModelDemand, RoleDemand


def role_demand(name: str, *engines: tuple[int, int], deferrable: bool = True) -> RoleDemand:
    """Return a role with a model ``m0``, ``m1``, … for each (replicas, devices per engine)."""
    return RoleDemand(
        role=RoleName(name),
        deferrable=deferrable,
        models=tuple(
            ModelDemand(
                model=ModelId(f"m{index}"),
                replicas=replicas,
                devices_per_engine=devices,
                tensor_parallel=devices,
                pipeline_parallel=1,
            )
            for index, (replicas, devices) in enumerate(engines)
        ),
    )
