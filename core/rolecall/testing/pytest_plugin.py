"""Fixtures for authors of plugins; pytest loads this module wherever rolecall is installed.

So importing it imports nothing of rolecall but its empty packages: what a fixture needs is imported when a
test asks for the fixture. docs/reference/testing.md describes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from rolecall.testing.engine_server import EngineServer
    from rolecall.testing.fake_groups import FakeGroups
    from rolecall.testing.virtual_time import VirtualClock

# Whoever inherits a contract wants to see what an assertion of it compared. pytest has to be told before the
# first import of a module; of a wheel's modules it knows by itself, of an editable installation's it doesn't.
pytest.register_assert_rewrite(
    *(f"rolecall.testing.{path.stem}" for path in Path(__file__).parent.glob("*_contract.py"))
)


@pytest.fixture
def rolecall_clock() -> Iterator[VirtualClock]:
    """Time that jumps to the next timer instead of passing."""
    from rolecall.testing.virtual_time import VirtualClock

    with VirtualClock() as clock:
        yield clock


@pytest.fixture
def rolecall_cluster() -> FakeGroups:
    """A cluster in memory: two nodes with four devices each. Its ``clock`` stands until it is waited for."""
    from rolecall.testing.fake_groups import FakeGroups

    return FakeGroups({"node-a": 4, "node-b": 4})


@pytest.fixture
def rolecall_engine_server() -> Iterator[EngineServer]:
    """A scripted engine that speaks SGLang's protocol at ``base_url``, on a free port."""
    from rolecall.testing.engine_server import engine_server

    with engine_server() as server:
        yield server
