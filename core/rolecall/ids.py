"""Identifiers that must not be mixed up, as distinct types."""

from typing import NewType

RoleName = NewType("RoleName", str)
"""Entry-point name of a role plugin, e.g. the key under ``[roles]`` in the job file."""

ModelId = NewType("ModelId", str)
"""Logical model id, unique within its role."""

EngineId = NewType("EngineId", str)
"""``{model_id}/replica-{index}``: stable across restarts, so affinity survives a rebuild."""

BatchId = NewType("BatchId", int)
"""Number of a deferred batch, from 0, never reused within a job."""

OperationId = NewType("OperationId", str)
"""Caller-chosen id of one lifecycle operation; repeating it joins the first call."""

FencingToken = NewType("FencingToken", int)
"""Strictly growing number carried by every lease command; a manager refuses a lower one."""


def engine_id(model: ModelId, replica_index: int) -> EngineId:
    """Return the stable id of a model's logical replica."""
    return EngineId(f"{model}/replica-{replica_index}")


def partition_name(batch: BatchId) -> str:
    """Return the sink partition that holds a committed batch."""
    return f"train_{batch}"
