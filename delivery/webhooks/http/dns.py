"""Look up host names in threads of our own.

Runs in the executors, inside the worker's event loop. Must not import pyspark or psycopg.

The event loop's own `getaddrinfo` shares four threads of libuv: four names whose servers do not answer would make all others
wait. The system's resolver tells no TTL, so a name that was found is kept for a fixed time (DNS_TTL_S, by the connector); that
a name was not found is not remembered at all: the next attempt asks again.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import socket

from aiohttp import abc

MAX_LOOKUPS = 64
"""Look-ups under way at once. A name that hangs holds one for as long as the system's resolver tries (10 s by default)."""
DNS_TTL_S = 30


class Resolver(abc.AbstractResolver):
    """For `aiohttp.TCPConnector(resolver=…)`, which asks once for all that wait for the same name."""

    def __init__(self) -> None:
        self._threads = concurrent.futures.ThreadPoolExecutor(MAX_LOOKUPS, thread_name_prefix="lookup")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[abc.ResolveResult]:
        """Return the addresses that `host` stands for; raise OSError. The guard judges them where the socket is made."""
        ask = functools.partial(
            socket.getaddrinfo, host, port, family=family, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
        )
        found = await asyncio.get_running_loop().run_in_executor(self._threads, ask)
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
        """Start no further look-ups; those that hang end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)
