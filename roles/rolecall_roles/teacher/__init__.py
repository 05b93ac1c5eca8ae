"""Teacher: gives the log-probabilities of a stronger model for what the policy wrote."""

from rolecall.api import Role, hookimpl

from .role import TeacherRole


@hookimpl
def rolecall_role() -> type[Role]:
    return TeacherRole
