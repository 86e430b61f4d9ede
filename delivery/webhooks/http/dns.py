"""Look up host names in a thread pool of this process.

Runs in the event loop of a worker, of the API or of a command. In workers and the API the event loop is uvloop. The
`getaddrinfo` of uvloop has four threads: four names with unresponsive DNS servers would block all other names. The system's
resolver returns no TTL, so the connector caches a found name for DNS_TTL_S. A name that was not found is not cached: the next
attempt looks it up again.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import socket
from collections.abc import Callable, Sequence
from typing import Any

from aiohttp import abc

from delivery.webhooks.http import guard

MAX_LOOKUPS = 64
"""Most look-ups at once. Each takes a thread until the system's resolver answers or gives up: after 10 s by default, with one
DNS server."""
DNS_TTL_S = 30
"""Seconds for which the addresses of a found name are cached."""
MAX_ADDRESSES = 8
"""Most addresses of a name that are used. For n addresses that refuse, aiohttp makes n(n+1)/2 connection attempts. A DNS answer
may have thousands of addresses."""
MAX_CHECKED = 64
"""Most addresses of a family that are checked by the guard. A check takes 10 µs, in which the event loop waits."""

_AddressInfo = tuple[Any, ...]
"""An address as `socket.getaddrinfo` returns it: family, kind, protocol, canonical name, and the socket's address."""


def chosen(found: Sequence[_AddressInfo], is_allowed: Callable[[str], bool]) -> list[_AddressInfo]:
    """Return at most MAX_ADDRESSES of the addresses that are allowed; the first of `found` if none is.

    If no address is allowed, the connection fails at this first address with BlockedSocket. The first MAX_CHECKED addresses of
    each family count. Families take turns, so that no family is left out. Within a family the order of the system stays.
    """
    allowed = [
        [
            info
            for info in itertools.islice((address for address in found if address[0] == family), MAX_CHECKED)
            if is_allowed(info[4][0])
        ]
        for family in dict.fromkeys(info[0] for info in found)
    ]
    in_turn = [info for turn in itertools.zip_longest(*allowed) for info in turn if info is not None]
    return in_turn[:MAX_ADDRESSES] or list(found[:1])


class Resolver(abc.AbstractResolver):
    """The resolver of aiohttp's connector. The connector joins simultaneous look-ups of the same name."""

    def __init__(self, address_guard: guard.Guard, *, max_lookups: int = MAX_LOOKUPS) -> None:
        self._guard = address_guard
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
        """Return at most MAX_ADDRESSES addresses of `host`, of both families if it has both; raise OSError if none is found.

        Addresses that the guard refuses are left out. If the guard refuses all addresses, the result is the first address. The
        guard checks each address again when its socket is created, and that check decides.
        """
        lookup = self._lookups[host, port] = self._threads.submit(self._look_up, host, port, family)
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

    def _look_up(self, host: str, port: int, family: socket.AddressFamily) -> list[_AddressInfo]:
        found = socket.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
        return chosen(found, self._guard.is_allowed)

    async def close(self) -> None:
        """Cancel look-ups that have not started, and return at once. Look-ups in progress end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)
