"""What an operator sets for the gateways of a job."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from attrs import evolve, field, frozen

from rolecall.config.specs import GatewaySection, RoleConfig
from rolecall.errors import ConfigError, ConfigProblem


@frozen(kw_only=True)
class GatewaySettings:
    """Limits and access of one gateway.

    max_body_bytes: larger request bodies are answered 413.
    request_timeout_s: deadline of a request, from its arrival to the last byte of its answer.
    max_concurrency: requests with engines at once; more wait for their turn within their deadline.
    max_wait_s: longest long poll of discovery.
    max_head_bytes: larger request heads, path and headers, are answered 431.
    max_requests_per_caller: requests, long polls too, that one caller may have under way; more are answered
        429. None: no limit.
    max_in_flight_per_replica: requests that this gateway lets be at one replica; more wait. None: no limit.
    max_queued_per_replica: requests that may wait for one replica; more are answered 503.
    bearer_tokens: of which callers must send one; without any, everyone is let in.
    """

    max_body_bytes: int = 32 * 1024**2
    request_timeout_s: float = 600.0
    max_concurrency: int = 2048
    max_wait_s: float = 30.0
    max_head_bytes: int = 64 * 1024
    max_requests_per_caller: int | None = None
    max_in_flight_per_replica: int | None = None
    max_queued_per_replica: int = 1024
    bearer_tokens: tuple[str, ...] = field(default=(), repr=False)


def settings_from(
    section: GatewaySection, *, file: str, environment: Mapping[str, str] = os.environ
) -> GatewaySettings:
    """Return the settings of a job file's ``[gateway]``, tokens taken from the environment.

    Raises:
        ConfigError: see :func:`bearer_tokens`.
    """
    return GatewaySettings(
        max_body_bytes=section.max_body_bytes,
        max_head_bytes=section.max_head_bytes,
        max_requests_per_caller=section.max_requests_per_caller,
        request_timeout_s=section.request_timeout_s,
        bearer_tokens=bearer_tokens(section, file=file, environment=environment),
    )


def settings_for_role(settings: GatewaySettings, role: RoleConfig) -> GatewaySettings:
    """Return the settings of one role's gateway."""
    return evolve(
        settings,
        max_in_flight_per_replica=role.max_in_flight_per_replica,
        max_queued_per_replica=role.max_queued_per_replica,
    )


def bearer_tokens(
    section: GatewaySection, *, file: str, environment: Mapping[str, str] = os.environ
) -> tuple[str, ...]:
    """Return the tokens that a job file's gateways let in, none if they let everyone in.

    The variable holds one token, or several with blanks or commas between them.

    Raises:
        ConfigError: the variable is not set, or a token could not be sent in a header.
    """
    variable = section.bearer_token_env
    if variable is None:
        return ()
    tokens = tuple(re.split(r"[\s,]+", environment.get(variable, "").strip(" \t\r\n,")))
    if tokens == ("",):
        message = f"environment variable {variable} is not set or empty; set it to the token callers send"
    elif not all(token.isascii() and token.isprintable() for token in tokens):
        message = f"environment variable {variable} holds a token that is not printable ASCII"
    else:
        return tokens
    raise ConfigError([ConfigProblem(file=file, key="gateway.bearer_token_env", message=message)])
