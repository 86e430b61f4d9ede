"""Connect a client with a server by a relay that can lose packets.

The sockets of the relay are real. The kernel drops a lost packet before TCP sees it: nobody acknowledges it, as when a cable is
pulled or a firewall forgets a connection (`SO_ATTACH_FILTER`, socket(7)).
"""

import contextlib
import ctypes
import socket
import struct
import threading

SO_ATTACH_FILTER = 26
_DROP_ALL = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
"""A packet filter of one instruction: return, with no bytes of the packet."""


class Relay:
    """Forward each connection to the Unix socket at `path`. Listen on `port` of an address of this machine."""

    def __init__(self, path: str, host: str = "127.0.0.1") -> None:
        self._path = path
        self._listening = socket.create_server((host, 0))
        self.port: int = self._listening.getsockname()[1]
        self._servers: list[socket.socket] = []
        self._clients: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_all(self) -> int:
        """From now on, lose each packet of the connected clients; return the number of these clients."""
        for client in [*self._clients]:
            client.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(_DROP_ALL)))
        return len(self._clients)

    def close(self) -> None:
        """Close all sockets. The threads that wait for them end as well."""
        for open_socket in (self._listening, *self._clients, *self._servers):
            with contextlib.suppress(OSError):  # it has ended
                open_socket.shutdown(socket.SHUT_RDWR)
            open_socket.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.socket(socket.AF_UNIX)
                try:
                    server.connect(self._path)
                except OSError:  # the server has too many clients for a moment, or is away
                    client.close()
                    server.close()
                    continue
                self._clients.append(client)
                self._servers.append(server)
                threading.Thread(target=self._carry, args=(client, server), daemon=True).start()

    def _carry(self, client: socket.socket, server: socket.socket) -> None:
        """Forward both ways, and close both sockets at the end: a long test has thousands of connections."""
        back = threading.Thread(target=_forward, args=(server, client), daemon=True)
        back.start()
        _forward(client, server)
        back.join()
        self._clients.remove(client)
        self._servers.remove(server)
        client.close()
        server.close()


def _forward(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while received := source.recv(65_536):
            sink.sendall(received)
        sink.shutdown(socket.SHUT_WR)
