"""A gateway's settings from the job file and the environment."""

from __future__ import annotations

import pytest

from rolecall.config.specs import GatewaySection
from rolecall.errors import ConfigError
from rolecall.gateway.settings import settings_from


def test_without_a_variable_there_is_no_token() -> None:
    assert settings_from(GatewaySection(), file="job.toml").bearer_token is None


def test_the_token_comes_from_the_environment_and_is_never_shown() -> None:
    section = GatewaySection(bearer_token_env="TOKEN")
    settings = settings_from(section, file="job.toml", environment={"TOKEN": "s3cret"})
    assert settings.bearer_token == "s3cret"
    assert "s3cret" not in repr(settings)


@pytest.mark.parametrize("environment", [{}, {"TOKEN": ""}])
def test_a_token_that_is_not_set_is_refused(environment: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="TOKEN is not set") as refusal:
        settings_from(GatewaySection(bearer_token_env="TOKEN"), file="job.toml", environment=environment)
    assert refusal.value.problems[0].key == "gateway.bearer_token_env"


def test_limits_come_from_the_job_file() -> None:
    section = GatewaySection(max_body_bytes=5, request_timeout_s=7)
    settings = settings_from(section, file="job.toml")
    assert (settings.max_body_bytes, settings.request_timeout_s) == (5, 7)
