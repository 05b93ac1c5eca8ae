"""Ports for engines, handed out so that two engines of a node never get the same one.

Every worker reserves its own ports, on the node where it runs. A reservation is two things:

* a *claim* on the number: a socket bound to an abstract Unix address made of the port number.
  The kernel lets one process of a node hold it, in whichever job, and lets go of it when that
  process ends, however it ends. So all workers of a node use one allocator without a server,
  and a killed worker leaves no stale claim and no lock file;
* the *bound TCP socket*, which shows that nobody else has the port and keeps everyone out.

A door in front of an engine gets the bound socket itself (:meth:`PortReservation.take_socket`) and
serves on it. An engine binds for itself, so for it the socket is closed by
:meth:`PortReservation.hand_over`, right before it is started. The claim stays in both cases until
:meth:`PortReservation.release`, after the engine has ended.

**The window that remains**, for engines only. Between ``hand_over`` and the engine's own bind, a
process that does not use this allocator may take the port. The ranges lie below the kernel's
ephemeral range (from 32768) and above the ports of Ray's workers (10002 to 19999), so an outgoing
connection or a Ray process is never given one; a foreign server told to use exactly that port
remains. The engine then fails to start, with its log's tail, and the next start gets another port.

Linux only, as is the parent-death signal of engines.
"""

from __future__ import annotations

import errno
import random
import socket
from enum import Enum

from attrs import define

from rolecall.errors import EngineError


class PortRange(Enum):
    """What a port is for. The ranges are disjoint, so purposes never compete."""

    SERVER = range(20_000, 24_000)
    COLLECTIVES = range(24_000, 27_000)
    DISTRIBUTED_INIT = range(27_000, 28_500)
    BOOTSTRAP = range(28_500, 29_000)


@define
class PortReservation:
    """One reserved port. Owned by the worker that reserved it."""

    host: str
    port: int
    _claim: socket.socket | None
    _held: socket.socket | None

    def hand_over(self) -> int:
        """Close the bound socket, so that the engine can bind, and return the port.

        The claim stays. Repeats do nothing more.
        """
        if self._held is not None:
            self._held.close()
            self._held = None
        return self.port

    def take_socket(self) -> socket.socket:
        """Return the bound socket, for whoever serves in this process; it is theirs to close.

        Raises:
            EngineError: it was taken or closed before.
        """
        if self._held is None:
            raise EngineError(f"port {self.port} of {self.host} is no longer held")
        held, self._held = self._held, None
        return held

    def release(self) -> None:
        """Give the port back. Repeats do nothing."""
        self.hand_over()
        if self._claim is not None:
            self._claim.close()
            self._claim = None


def reserve_port(host: str, purpose: PortRange, *, start: int | None = None) -> PortReservation:
    """Reserve a free port of a range on this node; ``host`` is where the engine will listen.

    The search begins at ``start``, by default at a random place: a port that just went out of
    use, with connections still closing, is then unlikely to be the next one given.

    Raises:
        EngineError: the whole range is in use, or ``host`` is not an address of this node.
    """
    ports = purpose.value
    offset = random.randrange(len(ports)) if start is None else start - ports.start
    for step in range(len(ports)):
        reserved = _reserve_exactly(host, ports[(offset + step) % len(ports)])
        if reserved is not None:
            return reserved
    raise EngineError(
        f"no free {purpose.name.lower()} port on this node: all of {ports.start} to {ports.stop - 1} "
        f"are in use on {host}"
    )


def reserve_block(host: str, purpose: PortRange, size: int) -> list[PortReservation]:
    """Reserve ``size`` ports that follow one another; the first is a multiple of ``size`` into the range.

    Raises:
        EngineError: no block of the range is wholly free, or ``host`` is not an address of this node.
    """
    ports = purpose.value
    firsts = list(range(ports.start, ports.stop - size + 1, size))
    random.shuffle(firsts)
    for first in firsts:
        block: list[PortReservation] = []
        for port in range(first, first + size):
            reserved = _reserve_exactly(host, port)
            if reserved is None:
                break
            block.append(reserved)
        if len(block) == size:
            return block
        for reserved in block:
            reserved.release()
    raise EngineError(
        f"no {size} free {purpose.name.lower()} ports in a row on this node, of {ports.start} to "
        f"{ports.stop - 1} on {host}"
    )


def _reserve_exactly(host: str, port: int) -> PortReservation | None:
    claim = _claim(port)
    if claim is None:
        return None
    held = _hold(host, port)
    if held is None:
        claim.close()
        return None
    return PortReservation(host, port, claim, held)


def _claim(port: int) -> socket.socket | None:
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        claim.bind(f"\0rolecall-port-{port}")
    except OSError:  # held by another worker of this node: that is the answer, not a fault
        claim.close()
        return None
    return claim


def _hold(host: str, port: int) -> socket.socket | None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    held = socket.socket(family, socket.SOCK_STREAM)
    # As engines do: a port whose old connections are still closing is free.
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        held.bind((host, port))
        # A bound socket that doesn't listen lets a second one with SO_REUSEADDR bind beside it.
        held.listen(1)
    except OSError as error:
        held.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise EngineError(
                f"{host} is not an address of this node, an engine can't listen on it"
            ) from error
        return None
    return held
