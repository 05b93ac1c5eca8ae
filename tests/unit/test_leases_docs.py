"""The pages that show a state machine are drawn from its transition table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rolecall.engines import replica_state
from rolecall.leases import batch_state, lease_state, operation
from rolecall.leases.batch_book import COMMITTED_BATCHES
from rolecall.leases.coordinator import DEFAULT_TIMEOUT_S
from rolecall.leases.operation import RETIRED_OPERATIONS
from rolecall.scaling import scale_state
from rolecall.transitions import markdown_table, mermaid_diagram

EXPLANATION = Path(__file__).parents[2] / "docs" / "explanation"
PAGE = EXPLANATION / "leases.md"

MACHINES: dict[str, tuple[Any, Any]] = {
    "lease": (lease_state.TRANSITIONS, {**lease_state.SHARED_STARTS, **lease_state.RESIDENT_STARTS}),
    "batch": (batch_state.TRANSITIONS, batch_state.STARTS),
    "operation": (operation.TRANSITIONS, operation.STARTS),
    "replica": (replica_state.TRANSITIONS, replica_state.STARTS),
    "scale": (scale_state.TRANSITIONS, scale_state.STARTS),
}
PAGES = {
    "replica": EXPLANATION / "engine-lifecycle.md",
    "scale": EXPLANATION.parent / "howto" / "elasticity.md",
}


@pytest.mark.parametrize("name", MACHINES)
def test_the_page_shows_the_machine_that_the_code_runs(name: str) -> None:
    table, starts = MACHINES[name]
    wanted = f"{mermaid_diagram(table, starts)}\n\n{markdown_table(table)}"
    page = PAGES.get(name, PAGE)
    found = re.search(rf"<!-- {name} -->\n(.*?)\n<!-- end -->", page.read_text(encoding="utf-8"), re.DOTALL)
    assert found, f"{page} has no block between '<!-- {name} -->' and '<!-- end -->'"
    assert found[1] == wanted, f"paste this between the markers of {name} in {page}:\n{wanted}"


def test_the_page_tells_the_limits_that_the_code_has() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for number in (f"{RETIRED_OPERATIONS:,}", f"{COMMITTED_BATCHES:,}", f"{DEFAULT_TIMEOUT_S:g} s"):
        assert number in page


def test_a_table_is_drawn_with_its_first_and_its_final_states() -> None:
    table, starts = MACHINES["batch"]
    assert mermaid_diagram(table, starts).splitlines()[:4] == [
        "```mermaid",
        "stateDiagram-v2",
        "    [*] --> PENDING: begun",
        "    PENDING --> COMMITTED",
    ]
    assert "| COMMITTED | – | final |" in markdown_table(table)
