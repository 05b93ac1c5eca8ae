"""What an operator sets for the gateways of a job."""

from __future__ import annotations

import os
from collections.abc import Mapping

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
        ConfigError: the token's variable is not set.
    """
    variable = section.bearer_token_env
    token = None if variable is None else environment.get(variable)
    if variable is not None and not token:
        problem = ConfigProblem(
            file=file,
            key="gateway.bearer_token_env",
            message=f"environment variable {variable} is not set or empty; set it to the token callers send",
        )
        raise ConfigError([problem])
    return GatewaySettings(
        max_body_bytes=section.max_body_bytes,
        request_timeout_s=section.request_timeout_s,
        bearer_token=token,
    )
