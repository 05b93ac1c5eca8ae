"""What an operator sets for the gateways of a job."""

from __future__ import annotations

import os
from collections.abc import Mapping
from ipaddress import ip_address

from attrs import field, frozen

from rolecall.config.specs import GatewaySection
from rolecall.errors import ConfigError, ConfigProblem


@frozen(kw_only=True)
class GatewaySettings:
    """Limits and access of one gateway.

    max_body_bytes: larger request bodies are answered 413.
    request_timeout_s: deadline of a request, from its arrival to the last byte of its answer.
    max_concurrency: requests with engines at once; more wait for their turn within their deadline.
    max_wait_s: longest long poll of discovery.
    bearer_token: what callers must send; None lets everyone in.
    """

    max_body_bytes: int = 32 * 1024**2
    request_timeout_s: float = 600.0
    max_concurrency: int = 2048
    max_wait_s: float = 30.0
    bearer_token: str | None = field(default=None, repr=False)


def settings_from(
    section: GatewaySection, *, file: str, environment: Mapping[str, str] = os.environ
) -> GatewaySettings:
    """Return the settings of a job file's ``[gateway]``, the token taken from the environment.

    Raises:
        ConfigError: the token's variable is not set, or the gateway would listen to other machines
            with neither a token nor ``allow_unauthenticated``.
    """
    token = None
    if section.bearer_token_env is not None:
        token = environment.get(section.bearer_token_env)
        if not token:
            raise _problem(
                file,
                "gateway.bearer_token_env",
                f"environment variable {section.bearer_token_env} is not set or empty",
            )
    if token is None and not section.allow_unauthenticated and not _is_loopback(section.host):
        raise _problem(
            file,
            "gateway.host",
            f"{section.host!r} lets other machines in; name a token variable in gateway.bearer_token_env, "
            "or set gateway.allow_unauthenticated = true",
        )
    return GatewaySettings(
        max_body_bytes=section.max_body_bytes,
        request_timeout_s=section.request_timeout_s,
        bearer_token=token,
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _problem(file: str, key: str, message: str) -> ConfigError:
    return ConfigError([ConfigProblem(file=file, key=key, message=message)])
