"""A gateway's settings from the job file and the environment."""

from __future__ import annotations

import pytest

from rolecall.config.specs import GatewaySection
from rolecall.errors import ConfigError
from rolecall.gateway.settings import GatewaySettings, settings_from

NAMED = GatewaySection(bearer_token_env="TOKEN")


def tokens(value: str) -> tuple[str, ...]:
    return settings_from(NAMED, file="job.toml", environment={"TOKEN": value}).bearer_tokens


def test_without_a_variable_there_is_no_token() -> None:
    assert settings_from(GatewaySection(), file="job.toml").bearer_tokens == ()


def test_tokens_come_from_the_environment_and_are_never_shown() -> None:
    assert tokens("s3cret") == ("s3cret",)
    assert tokens("\n one,two\tthree, four,\n") == ("one", "two", "three", "four")
    assert "s3cret" not in repr(GatewaySettings(bearer_tokens=("s3cret",)))


@pytest.mark.parametrize("environment", [{}, {"TOKEN": ""}, {"TOKEN": " , \n"}])
def test_a_token_that_is_not_set_is_refused(environment: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="TOKEN is not set") as refusal:
        settings_from(NAMED, file="job.toml", environment=environment)
    assert refusal.value.problems[0].key == "gateway.bearer_token_env"


@pytest.mark.parametrize("value", ["s3cr\x00t", "gehéim", "fine s3cr\x7ft"])
def test_a_token_that_no_header_can_carry_is_refused_unseen(value: str) -> None:
    with pytest.raises(ConfigError, match="printable ASCII") as refusal:
        tokens(value)
    assert value not in str(refusal.value)


def test_limits_come_from_the_job_file() -> None:
    section = GatewaySection(
        max_body_bytes=5, max_head_bytes=6, max_requests_per_caller=7, request_timeout_s=8
    )
    assert settings_from(section, file="job.toml") == GatewaySettings(
        max_body_bytes=5, max_head_bytes=6, max_requests_per_caller=7, request_timeout_s=8
    )
