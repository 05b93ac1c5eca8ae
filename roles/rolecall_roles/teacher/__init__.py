"""Teacher: gives the log-probabilities of a stronger model for what the policy wrote."""

from rolecall.api import Role, hookimpl

from .moving_average import MovingAverage
from .role import TeacherRole
from .urls import get_urls

__all__ = ["MovingAverage", "get_urls", "rolecall_role"]


@hookimpl
def rolecall_role() -> type[Role]:
    return TeacherRole
