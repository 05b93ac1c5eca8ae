"""A port for a process that a test starts."""

from __future__ import annotations

from rolecall.engines.ports import PortRange, PortReservation, reserve_port

_given: list[PortReservation] = []
"""Kept until this process ends: a test's process may be started long after its port was chosen."""


def free_port() -> int:
    """Return a loopback port that nothing listens on.

    No other caller on this machine gets it while this process lives, nor does an outgoing connection: see
    :mod:`rolecall.engines.ports`.
    """
    reservation = reserve_port("127.0.0.1", PortRange.SERVER)
    _given.append(reservation)
    return reservation.hand_over()
