"""``[roles.teacher.options.external.<name>]``: where a teacher is that this job does not run,
and who it is."""

from __future__ import annotations

import os
from typing import Any

from attrs import field, frozen, validators


def _check_url(name: str, value: str) -> None:
    scheme, _, rest = value.partition("://")
    host = rest.split("/")[0]
    if scheme not in ("http", "https") or not host or "@" in host or value.endswith("/"):
        found = "one with a password" if "@" in value else f"{value!r:.80}"  # messages end up in logs
        raise ValueError(
            f'{name} must be "http://host:port", without a password in it and a slash at its end, '
            f"found {found}"
        )


def _are_urls(_: object, attribute: Any, value: tuple[str, ...]) -> None:
    for url in value:
        _check_url(attribute.name, url)
    if len(set(value)) < len(value):
        raise ValueError(f"{attribute.name} names one twice: {', '.join(value)}")


def _is_url(_: object, attribute: Any, value: str | None) -> None:
    if value is not None:
        _check_url(attribute.name, value)


def _is_set(_: object, attribute: Any, value: str | None) -> None:
    if value is not None and not os.environ.get(value):
        raise ValueError(
            f"{attribute.name} names the environment variable {value}, which is not set where rolecall runs"
        )


@frozen(kw_only=True)
class ExternalTeacher:
    """Either ``urls`` or ``gateway`` says where it is; the rest is checked before it is asked.

    urls: engines with the same model; the samples of a group go to one of them.
    gateway: the gateway of another job's role, ``http://host:port/{role}``.
    model: which of that role's models; None takes its default. Of a gateway only.
    model_path: what its engines report as their ``model_path``.
    vocabulary_size: how many token ids its model has.
    route_keys: samples with these come here; without any, those that no route key names.
    token_env: environment variable with the bearer token that it wants; None sends none.
    """

    model_path: str = field(validator=validators.min_len(1))
    vocabulary_size: int = field(validator=validators.gt(1))
    urls: tuple[str, ...] = field(default=(), validator=_are_urls)
    gateway: str | None = field(default=None, validator=_is_url)
    model: str | None = None
    route_keys: tuple[str, ...] = ()
    token_env: str | None = field(default=None, validator=_is_set)

    def __attrs_post_init__(self) -> None:
        if bool(self.urls) == (self.gateway is not None):
            found = "both" if self.urls else "neither"
            raise ValueError(f"urls or gateway must say where the teacher is, found {found}")
        if self.model is not None and self.gateway is None:
            raise ValueError("model chooses among a gateway's models; an engine has one")

    @property
    def headers(self) -> dict[str, str]:
        """What it wants with every request; the token is read now, never kept."""
        return {} if self.token_env is None else {"authorization": f"Bearer {os.environ[self.token_env]}"}
