"""``[roles.teacher.options]``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen, validators

from .external_options import ExternalTeacher

_METADATA = "metadata."


def _is_attribute(_: object, attribute: Any, value: str) -> None:
    if value != "data_source" and not value.removeprefix(_METADATA):
        raise ValueError(f"{attribute.name} must be data_source or {_METADATA}<name>, found {value!r}")
    if value != "data_source" and not value.startswith(_METADATA):
        raise ValueError(f"{attribute.name} must be data_source or {_METADATA}<name>, found {value!r}")


def _share_no_key(_: object, attribute: Any, value: Mapping[str, ExternalTeacher]) -> None:
    takers: dict[str | None, str] = {}
    for name, teacher in value.items():
        for key in teacher.route_keys or (None,):
            if key in takers:
                what = "take what no route key names" if key is None else f"have the route key {key!r}"
                raise ValueError(f"{attribute.name}: {takers[key]!r} and {name!r} both {what}; one may")
            takers[key] = name


def _needs_alternatives(options: TeacherOptions, attribute: Any, value: bool) -> None:
    if value and not options.top_k:
        raise ValueError(f"{attribute.name} unites the teacher's most probable tokens with others: set top_k")


@frozen(kw_only=True)
class TeacherOptions:
    """What the teacher is asked for.

    top_k: most probable tokens to report at each position; 0 reports the sampled token only.
    union: report at each position those tokens, the sampled one, and the policy's own most probable ones
        as far as the samples have them; rows of unequal size are padded.
    union_window: response tokens of one request that asks for the policy's tokens: their number times these
        tokens is answered for each of them.
    route_by: which part of a prompt is the route key, ``data_source`` or ``metadata.<name>``. A
        value that is not among the role's ``route_keys`` goes to the default model.
    timeout_s: limit of one request.
    external: teachers that this job does not run, by name.
    """

    top_k: int = field(default=8, validator=validators.ge(0))
    union: bool = field(default=False, validator=_needs_alternatives)
    union_window: int = field(default=64, validator=validators.gt(0))
    route_by: str = field(default="data_source", validator=_is_attribute)
    timeout_s: float = field(default=120.0, validator=validators.gt(0))
    external: Mapping[str, ExternalTeacher] = field(factory=dict, validator=_share_no_key)
