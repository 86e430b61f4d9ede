"""Open the sockets on which the platform's servers listen.

Runs on the driver, in `fanout archive` and in the API.
"""

from __future__ import annotations

import socket


def opened(host: str, port: int, *, backlog: int = 128) -> socket.socket:
    """Return a socket that listens on `host` and `port`. `port` 0: the system chooses a port.

    A host with a colon is an IPv6 address. `::` takes connections of IPv4 too where the system lets one socket take both.
    `backlog` is the maximum of connections that wait to be accepted. Raise OSError if the address cannot be opened.
    """
    is_ipv6 = ":" in host
    return socket.create_server(
        (host, port),
        family=socket.AF_INET6 if is_ipv6 else socket.AF_INET,
        backlog=backlog,
        dualstack_ipv6=is_ipv6 and socket.has_dualstack_ipv6(),
    )
