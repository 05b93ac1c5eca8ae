"""The one rule of alignment, and the one formula of reservations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolecall.api import Nodes, place_role
from rolecall.placement.plan import reservation_share
from rolecall.placement.wording import bundle_runs
from rolecall.testing.demands import role_demand


@pytest.mark.parametrize(
    ("free_from", "devices", "per_node", "start"),
    [
        (0, 8, 8, 0),
        (4, 4, 8, 4),
        (5, 4, 8, 8),
        (7, 1, 8, 7),
        (1, 16, 8, 8),
        (8, 16, 8, 8),
        (3, 1, 1, 3),
        (3, 4, 1, 3),
    ],
)
def test_an_engine_starts_at_the_first_bundle_where_it_does_not_straddle(
    free_from: int, devices: int, per_node: int, start: int
) -> None:
    assert Nodes.endless(per_node).first_start(free_from, devices) == start
    room = start + devices
    assert Nodes.of([per_node] * -(-room // per_node)).first_start(free_from, devices) == start
    assert Nodes.of([per_node] * ((room - 1) // per_node)).first_start(free_from, devices) is None


def test_engines_follow_the_file_and_skip_the_end_of_a_node() -> None:
    laid = place_role(role_demand("writer", (2, 3), (1, 2)), pool_id="pool", start=1, nodes=Nodes.endless(4))
    assert laid is not None
    assert [replica.bundles for replica in laid.replicas] == [(1, 2, 3), (4, 5, 6), (8, 9)]
    assert [replica.engine for replica in laid.replicas] == ["m0/replica-0", "m0/replica-1", "m1/replica-0"]
    assert (laid.start, laid.stop) == (1, 10)


@given(st.integers(1, 10_000))
def test_reservations_are_the_most_of_rays_units_that_sum_to_at_most_one(tenants: int) -> None:
    share = reservation_share(tenants)
    ten_thousandths = round(share * 10_000)
    assert share == ten_thousandths / 10_000
    assert 0 < ten_thousandths * tenants <= 10_000 < (ten_thousandths + 1) * tenants


def test_more_tenants_than_ray_can_tell_apart_get_nothing() -> None:
    assert reservation_share(10_001) == 0.0


def test_bundle_runs() -> None:
    assert bundle_runs([]) == ""
    assert bundle_runs([5, 3, 4, 9, 11, 12]) == "3-5, 9, 11-12"
