"""What ``explore.py`` does at length, for a moment: schemathesis against the gateways of two roles."""

from __future__ import annotations

import pytest
from explore import explored
from served_role import served_role

from rolecall.gateway.settings import GatewaySettings


@pytest.mark.parametrize("role", ["genrm", "rollout"])
def test_schemathesis_finds_nothing_wrong(role: str) -> None:
    with served_role(role) as served:
        assert explored(served, seed=1, examples=5) == ""
    assert served.answered.total() >= 20
    assert {status for _, status in served.answered} >= {200, 400}
    assert not [status for _, status in served.answered if status >= 500]


def test_what_is_wrong_is_found() -> None:
    """A gateway that takes less than its document says."""
    with served_role("teacher", GatewaySettings(max_body_bytes=1)) as served:
        assert "Schema-valid request rejected" in explored(served, seed=1, examples=5)
