"""Look up host names in a thread pool of this process.

Runs in the event loop of a worker, of the API or of a command. In workers and the API this is uvloop. The `getaddrinfo` of
uvloop has four threads: four names with unresponsive DNS servers would block all other names. The system's resolver returns no
TTL, so the connector caches a found name for DNS_TTL_S. A name that was not found is not cached: the next attempt looks it up
again.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import socket
from typing import Any

from aiohttp import abc

MAX_LOOKUPS = 64
"""Most look-ups at once. Each takes a thread until the system's resolver answers or gives up: after 10 s by default, with one
DNS server."""
DNS_TTL_S = 30
"""Seconds for which the addresses of a found name are cached."""


class Resolver(abc.AbstractResolver):
    """The resolver of aiohttp's connector. The connector joins simultaneous look-ups of the same name."""

    def __init__(self, *, max_lookups: int = MAX_LOOKUPS) -> None:
        self._threads = concurrent.futures.ThreadPoolExecutor(max_lookups, thread_name_prefix="lookup")
        self._lookups: dict[tuple[str, int], concurrent.futures.Future[Any]] = {}
        """By host and port, the look-ups in progress and those that wait for a thread."""

    def is_waiting(self, host: str, port: int) -> bool:
        """Return True if the look-up of `host` for `port` waits for a thread, because `max_lookups` others are in progress."""
        lookup = self._lookups.get((host, port))
        return lookup is not None and not lookup.running() and not lookup.done()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[abc.ResolveResult]:
        """Return the addresses of `host`; raise OSError if none is found.

        The addresses are not checked here: the guard checks each address when its socket is created.
        """
        ask = functools.partial(
            socket.getaddrinfo, host, port, family=family, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
        )
        lookup = self._lookups[host, port] = self._threads.submit(ask)
        try:
            found = await asyncio.wrap_future(lookup)
        finally:
            self._lookups.pop((host, port), None)
        return [
            abc.ResolveResult(
                hostname=host,
                host=str(address[0]),
                port=port,
                family=found_family,
                proto=protocol,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for found_family, _, protocol, _, address in found
        ]

    async def close(self) -> None:
        """Cancel look-ups that have not started, and return at once. Look-ups in progress end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)
