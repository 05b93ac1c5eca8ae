"""Rollout: the policy being trained. It generates the samples of a batch."""

from rolecall.api import Role, hookimpl

from .role import RolloutRole


@hookimpl
def rolecall_role() -> type[Role]:
    return RolloutRole
