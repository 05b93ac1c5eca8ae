"""A network loss that is made by the tests: nothing arrives, and everything does when it ends."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
from fault_matrix.network import NetworkLoss

ECHO = """
import socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
connection, _ = server.accept()
while data := connection.recv(100):
    connection.sendall(data)
"""


@pytest.fixture
def echo() -> Iterator[tuple[int, socket.socket]]:
    """A process that sends back what it gets, and a connection to it."""
    with subprocess.Popen([sys.executable, "-c", ECHO], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"before")
            assert connection.recv(100) == b"before"
            yield process.pid, connection
        process.kill()


def test_nothing_arrives_until_it_is_healed(echo: tuple[int, socket.socket]):
    pid, connection = echo
    loss = NetworkLoss([pid])
    try:
        connection.sendall(b"lost, and repeated")
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(100)
        with pytest.raises(TimeoutError):
            socket.create_connection(connection.getpeername(), timeout=0.3)
    finally:
        loss.heal()
    connection.settimeout(10.0)
    assert connection.recv(100) == b"lost, and repeated"
    loss.heal()


def test_the_other_ends_hear_nothing_either(echo: tuple[int, socket.socket]):
    pid, connection = echo
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        # Only connections to the victim are cut: those of anyone else go on.
        loss = NetworkLoss([stranger.pid], [pid])
        try:
            connection.sendall(b"through")
            assert connection.recv(100) == b"through"
        finally:
            loss.heal()
        stranger.communicate()


def test_a_process_that_has_ended_is_no_victim():
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    NetworkLoss([ended.pid]).heal()
