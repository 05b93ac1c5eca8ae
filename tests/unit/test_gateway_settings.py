"""Who may be let in: loopback by default, others only with a token or by an explicit word."""

from __future__ import annotations

import pytest

from rolecall.config.specs import GatewaySection
from rolecall.errors import ConfigError
from rolecall.gateway.settings import settings_from


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost", "::1", "[::1]"])
def test_loopback_needs_no_token(host: str) -> None:
    assert settings_from(GatewaySection(host=host), file="job.toml").bearer_token is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "gateway.example", "", "127.0.0.1.example"])
def test_other_addresses_need_a_token_or_an_explicit_word(host: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        settings_from(GatewaySection(host=host), file="job.toml")
    assert refusal.value.problems[0].key == "gateway.host"
    assert "bearer_token_env" in str(refusal.value)
    settings_from(GatewaySection(host=host, allow_unauthenticated=True), file="job.toml")
    guarded = settings_from(
        GatewaySection(host=host, bearer_token_env="TOKEN"), file="job.toml", environment={"TOKEN": "s3cret"}
    )
    assert guarded.bearer_token == "s3cret"


@pytest.mark.parametrize("environment", [{}, {"TOKEN": ""}])
def test_a_token_that_is_not_set_is_refused_even_on_loopback(environment: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="TOKEN is not set") as refusal:
        settings_from(GatewaySection(bearer_token_env="TOKEN"), file="job.toml", environment=environment)
    assert refusal.value.problems[0].key == "gateway.bearer_token_env"


def test_limits_come_from_the_job_file() -> None:
    section = GatewaySection(max_body_bytes=5, request_timeout_s=7)
    settings = settings_from(section, file="job.toml")
    assert (settings.max_body_bytes, settings.request_timeout_s) == (5, 7)
