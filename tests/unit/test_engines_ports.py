"""Ports: two workers of a node never get the same one, and a dead worker's come back."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from rolecall.engines.ports import PortRange, PortReservation, reserve_block, reserve_port
from rolecall.errors import EngineError

HOST = "127.0.0.1"


def reserve(start: int | None = None, purpose: PortRange = PortRange.SERVER) -> PortReservation:
    return reserve_port(HOST, purpose, start=start)


def test_ranges_are_disjoint_and_away_from_ephemeral_ports_and_ray() -> None:
    ports = [port for purpose in PortRange for port in purpose.value]
    assert len(ports) == len(set(ports))
    assert min(ports) >= 20_000
    assert max(ports) < 32_768


def test_a_reserved_port_is_bound_and_not_given_twice() -> None:
    first = reserve()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError, match="in use"):
            other.bind((HOST, first.port))
    second = reserve(first.port)
    assert second.port != first.port
    first.release()
    second.release()


def test_after_the_hand_over_the_engine_can_bind_and_other_workers_still_cannot_get_it() -> None:
    reservation = reserve()
    assert reservation.hand_over() == reservation.hand_over() == reservation.port
    with socket.socket() as engine:
        engine.bind((HOST, reservation.port))
        other = reserve(reservation.port)
        assert other.port != reservation.port
        other.release()
    other = reserve(reservation.port)
    assert other.port != reservation.port, "the claim outlives the engine's socket"
    other.release()
    reservation.release()
    reservation.release()
    again = reserve(reservation.port)
    assert again.port == reservation.port
    again.release()


def test_a_port_that_a_stranger_uses_is_passed_over() -> None:
    probe = reserve()
    port = probe.port
    probe.release()
    with socket.socket() as stranger:
        stranger.bind((HOST, port))
        stranger.listen()
        reservation = reserve(port)
        assert reservation.port != port
        reservation.release()


HOLD_A_PORT = """
import sys
from rolecall.engines.ports import PortRange, reserve_port
reservation = reserve_port("127.0.0.1", PortRange.SERVER, start=int(sys.argv[1]))
print(reservation.port, flush=True)
sys.stdin.read()
"""


def test_another_process_cannot_get_it_and_a_killed_one_gives_it_back() -> None:
    mine = reserve()
    with subprocess.Popen(
        [sys.executable, "-c", HOLD_A_PORT, str(mine.port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            assert child.stdout is not None
            theirs = int(child.stdout.readline())
            assert theirs != mine.port
            other = reserve(theirs)
            assert other.port != theirs
            other.release()
        finally:
            child.kill()
    again = reserve(theirs)
    assert again.port == theirs
    again.release()
    mine.release()


def test_an_address_of_another_machine_is_refused_with_its_reason() -> None:
    with pytest.raises(EngineError, match=r"192\.0\.2\.1 is not an address of this node"):
        reserve_port("192.0.2.1", PortRange.SERVER)


def test_a_full_range_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = [reserve(port, PortRange.BOOTSTRAP) for port in PortRange.BOOTSTRAP.value]
    try:
        with pytest.raises(EngineError, match="no free bootstrap port"):
            reserve(purpose=PortRange.BOOTSTRAP)
    finally:
        for reservation in taken:
            reservation.release()


def test_a_block_is_ports_in_a_row_that_nobody_else_gets() -> None:
    blocks = [reserve_block("127.0.0.1", PortRange.DISTRIBUTED_INIT, 32) for _ in range(3)]
    try:
        for block in blocks:
            ports = [reservation.port for reservation in block]
            assert ports == list(range(ports[0], ports[0] + 32))
            assert set(ports) <= set(PortRange.DISTRIBUTED_INIT.value)
        assert len({reservation.port for block in blocks for reservation in block}) == 96
    finally:
        for block in blocks:
            for reservation in block:
                reservation.release()


def test_a_block_that_is_not_wholly_free_is_passed_over() -> None:
    size = len(PortRange.BOOTSTRAP.value) // 2
    taken = reserve_port("127.0.0.1", PortRange.BOOTSTRAP, start=PortRange.BOOTSTRAP.value.start)
    block = reserve_block("127.0.0.1", PortRange.BOOTSTRAP, size)
    try:
        assert taken.port not in {reservation.port for reservation in block}
        with pytest.raises(EngineError, match="free bootstrap ports in a row"):
            reserve_block("127.0.0.1", PortRange.BOOTSTRAP, size)
    finally:
        for reservation in (taken, *block):
            reservation.release()
