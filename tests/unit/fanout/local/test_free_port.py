"""A port that was chosen for a server is still free when the server binds it, seconds later."""

import secrets
import socket
import sys

import pytest

from delivery import errors
from fanout.local import kafka_server


def test_no_connection_takes_a_chosen_port():
    """Regression: a connection got the port of a broker that was starting, and the broker ended."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        connections = [socket.create_connection(server.getsockname()) for _ in range(50)]
        taken = {connection.getsockname()[1] for connection in connections}
    for connection in connections:
        connection.close()
    assert taken.isdisjoint(kafka_server.PORTS)
    assert kafka_server.free_port() in kafka_server.PORTS


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a server listen on a port that is held")
def test_a_port_that_was_chosen_is_not_chosen_again(monkeypatch):
    """Regression: two workers of pytest chose the same port, and the broker that bound it later ended."""
    mine, free = kafka_server.free_port(), kafka_server.free_port()
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", free))
        server.listen()
        monkeypatch.setattr(secrets, "choice", lambda _: mine)
        with pytest.raises(errors.LocalStackError, match="no port from 20000 to 29999 is free"):
            kafka_server.free_port()
