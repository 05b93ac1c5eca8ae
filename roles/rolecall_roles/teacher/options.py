"""``[roles.teacher.options]``."""

from __future__ import annotations

from typing import Any

from attrs import field, frozen, validators

_METADATA = "metadata."


def _is_attribute(_: object, attribute: Any, value: str) -> None:
    if value != "data_source" and not value.removeprefix(_METADATA):
        raise ValueError(f"{attribute.name} must be data_source or {_METADATA}<name>, found {value!r}")
    if value != "data_source" and not value.startswith(_METADATA):
        raise ValueError(f"{attribute.name} must be data_source or {_METADATA}<name>, found {value!r}")


@frozen(kw_only=True)
class TeacherOptions:
    """What the teacher is asked for.

    top_k: most probable tokens to report at each position; 0 reports the sampled token only.
    route_by: which part of a prompt is the route key, ``data_source`` or ``metadata.<name>``. A
        value that is not among the role's ``route_keys`` goes to the default model.
    timeout_s: limit of one request.
    """

    top_k: int = field(default=8, validator=validators.ge(0))
    route_by: str = field(default="data_source", validator=_is_attribute)
    timeout_s: float = field(default=120.0, validator=validators.gt(0))
