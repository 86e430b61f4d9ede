"""Poll dead letters over HTTP in the name of many customers, in a process of its own, at a pace independent of the API.

A poll begins at its due time, on one of a few persistent connections. If all connections are busy, the poll waits for one.
The wait is part of the poll's latency. So a slow API does not reduce the number of polls.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import multiprocessing
import os
import random
import resource
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Self

import aiohttp
import orjson
import uvloop

from load_tests.harness import figures, usage

CONSUMER = "load"
"""Name of each customer's dead letter consumer."""
LEASE_S = 60
"""Seconds for which a poll leases dead letters."""
PAGE, LEASE, ACK, GREEDY, SLOW = "page", "lease", "ack", "greedy", "slow"
"""Kinds of requests: read a page, lease, acknowledge, lease beyond the limit, and read a page slowly."""
MODEST = (PAGE, LEASE, ACK)
"""Kinds of requests within their limits. The API must answer each with 200."""
START_TIMEOUT_S = 20
"""Seconds within which the polling process must have begun."""
REQUEST_TIMEOUT_S = 30
"""Seconds after which a request counts as unanswered."""
GREEDY_CONNECTIONS = 8
"""Connections of the greedy customer."""
SLOW_LETTERS, SLOW_BYTES, SLOW_PER_S, SLOW_PAUSE_S = 100, 1024, 10, 1.0
"""A slow reader's dead letters in a page, bytes of a read, reads a second, and seconds of pause after a broken connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Polls:
    """Parameters of the polls: pace, customers and kinds."""

    port: int
    """Port of `fanout serve` on this machine."""
    keys: Sequence[str]
    """API keys of the customers. Each poll uses the key of a random customer, but never of the greedy customer."""
    per_s: float
    """Polls a second: pages and leases. The acknowledgement after a lease is not counted."""
    connections: int = 16
    """Connections of all polls together, without the connections of the greedy customer and of the slow readers."""
    limit: int = 100
    """Largest number of dead letters of a poll."""
    leases: float = 0.5
    """Share of the polls that lease; the other polls read pages."""
    greedy_per_s: float = 0.0
    """Additional leases a second of the first customer, who acknowledges none and ignores Retry-After."""
    slow_readers: int = 0
    """Additional connections of the last customer, who reads answers at 10 kB a second."""
    seed: int = 1
    nice: int = 0
    """Nice value of the polling process."""


@dataclass(slots=True, kw_only=True)
class PollingReport:
    """Results of the requests, by kind, and totals of the polling process."""

    latencies_ms: dict[str, list[float]] = field(default_factory=lambda: collections.defaultdict(list))
    """By kind: latencies of requests that were answered with 200, milliseconds."""
    statuses: collections.Counter[tuple[str, int]] = field(default_factory=collections.Counter)
    """Answers by kind and status."""
    broken: collections.Counter[str] = field(default_factory=collections.Counter)
    """By kind: requests without an answer, because the connection closed or REQUEST_TIMEOUT_S passed."""
    letters: int = 0
    """Dead letters in the answers, except in answers to slow readers."""
    slow_bytes: int = 0
    """Bytes that slow readers read."""
    cpu_s: float = 0.0
    """CPU seconds of the polling process."""

    @property
    def failed(self) -> int:
        """Return the number of failed requests.

        A request whose kind is in MODEST failed if it was not answered with 200. A request of another kind failed only if the
        answer was a 5xx.
        """
        wrong = sum(count for (kind, status), count in self.statuses.items() if status >= (201 if kind in MODEST else 500))
        return wrong + sum(self.broken[kind] for kind in MODEST)

    def document(self) -> dict[str, Any]:
        """Return the results as JSON values."""
        answers: dict[str, dict[str, int]] = {}
        for (kind, status), count in sorted(self.statuses.items()):
            answers.setdefault(kind, {})[str(status)] = count
        return {
            "latency_ms": {
                kind: {name: round(value, 1) for name, value in figures.cuts(found).items()}
                for kind, found in sorted(self.latencies_ms.items())
            },
            "answers": answers,
            "failed": self.failed,
            "unanswered": dict(self.broken),
            "letters_given": self.letters,
            "bytes_read_slowly": self.slow_bytes,
        }


class _Pollers:
    """Send the requests of all customers, and record their results. Runs in the polling process."""

    def __init__(self, polls: Polls) -> None:
        self._polls = polls
        self._keys = polls.keys[1:] if polls.greedy_per_s else polls.keys
        self._rng = random.Random(polls.seed)
        self._cursors: dict[str, str] = {}
        self._cpu_s = 0.0
        self.seen = PollingReport()

    def reset(self) -> None:
        """Discard the results until now."""
        self.seen, self._cpu_s = PollingReport(), _cpu_s()

    def report(self) -> PollingReport:
        """Return the results since the last reset."""
        self.seen.cpu_s = _cpu_s() - self._cpu_s
        return self.seen

    async def run(self) -> None:
        """Send requests until the task is cancelled."""
        polls = self._polls
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
        connector = aiohttp.TCPConnector(limit=0)  # the tasks are the bound: one for each connection
        url = f"http://127.0.0.1:{polls.port}"
        async with aiohttp.ClientSession(url, connector=connector, timeout=timeout) as self._session:
            due, greedy_due = schedule(time.perf_counter(), polls.per_s), schedule(time.perf_counter(), polls.greedy_per_s)
            async with asyncio.TaskGroup() as group:
                for _ in range(polls.connections):
                    group.create_task(self._poll(due))
                for _ in range(GREEDY_CONNECTIONS if polls.greedy_per_s else 0):
                    group.create_task(self._be_greedy(greedy_due))
                for _ in range(polls.slow_readers):
                    group.create_task(self._read_slowly())

    async def _poll(self, due: Iterator[float]) -> None:
        for at in due:
            await _sleep_until(at)
            key = self._rng.choice(self._keys)
            if self._rng.random() < self._polls.leases:
                await self._lease(key, at)
            else:
                await self._read_page(key, at)

    async def _be_greedy(self, due: Iterator[float]) -> None:
        for at in due:
            await _sleep_until(at)
            await self._ask(GREEDY, self._polls.keys[0], at, "lease", self._leasing())

    async def _read_page(self, key: str, at: float) -> None:
        """Read the next page of the customer with this key. After the last page or a failed request comes the first page."""
        cursor = f"&cursor={self._cursors[key]}" if key in self._cursors else ""
        page = await self._ask(PAGE, key, at, f"/v1/dead-letters?limit={self._polls.limit}{cursor}")
        if page is not None and page["has_more"]:
            self._cursors[key] = page["next_cursor"]
        else:
            self._cursors.pop(key, None)

    async def _lease(self, key: str, at: float) -> None:
        leased = await self._ask(LEASE, key, at, "lease", self._leasing())
        if leased is not None and leased["items"]:
            receipts = {"receipts": [item["receipt"] for item in leased["items"]]}
            await self._ask(ACK, key, time.perf_counter(), "ack", receipts)

    def _leasing(self) -> dict[str, Any]:
        return {"limit": self._polls.limit, "lease_s": LEASE_S}

    async def _ask(
        self, kind: str, key: str, at: float, path: str, document: dict[str, Any] | None = None
    ) -> dict[str, Any] | None:
        """Send a request now; return the body of a 200, and None for another answer or without an answer.

        The latency counts from `at`, the request's due time. Without a document, the request is a GET of `path`. A document is
        posted to the action `path` of the customer's consumer.
        """
        method, headers = "GET", {"authorization": f"Bearer {key}"}
        if document is not None:
            method, path = "POST", f"/v1/dead-letter-consumers/{CONSUMER}/{path}"
            headers["content-type"] = "application/json"
        data = None if document is None else orjson.dumps(document)
        try:
            async with self._session.request(method, path, data=data, headers=headers) as response:
                body = await response.read()
        except (aiohttp.ClientError, TimeoutError):
            self.seen.broken[kind] += 1
            return None
        took_ms = (time.perf_counter() - at) * 1000
        self.seen.statuses[kind, response.status] += 1
        if response.status != 200:
            return None
        self.seen.latencies_ms[kind].append(took_ms)
        answered: dict[str, Any] = orjson.loads(body)
        self.seen.letters += len(answered.get("items", ()))
        return answered

    async def _read_slowly(self) -> None:
        request = (
            f"GET /v1/dead-letters?limit={SLOW_LETTERS} HTTP/1.1\r\nhost: 127.0.0.1\r\n"
            f"authorization: Bearer {self._polls.keys[-1]}\r\nconnection: close\r\n\r\n"
        ).encode()
        while True:
            connection = socket.socket()
            connection.setsockopt(
                socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_BYTES
            )  # so that the unread part of the answer stays in the server's buffer
            connection.setblocking(False)
            try:
                await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", self._polls.port))
                reader, writer = await asyncio.open_connection(sock=connection, limit=SLOW_BYTES)
                writer.write(request)
                status = int((await reader.readuntil(b"\r\n")).split()[1])
                for at in schedule(time.perf_counter(), SLOW_PER_S):
                    await _sleep_until(at)
                    part = await reader.read(SLOW_BYTES)
                    if not part:
                        break
                    self.seen.slow_bytes += len(part)
                self.seen.statuses[SLOW, status] += 1
                writer.close()
            except (OSError, asyncio.IncompleteReadError):
                self.seen.broken[SLOW] += 1
                connection.close()
                await asyncio.sleep(SLOW_PAUSE_S)


def schedule(began: float, per_s: float) -> Iterator[float]:
    """Yield the due times of requests, on the clock of `began`, without end. Several tasks may share the iterator."""
    return (began + number / per_s for number in itertools.count())


async def _sleep_until(at: float) -> None:
    await asyncio.sleep(max(0.0, at - time.perf_counter()))


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _run(polls: Polls, pipe: Connection) -> None:
    os.setsid()
    usage.step_back(os.getpid(), polls.nice)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        pollers = _Pollers(polls)
        polling = asyncio.create_task(pollers.run())
        pipe.send("begun")
        with contextlib.suppress(EOFError):  # the parent process has ended
            while await loop.run_in_executor(None, pipe.recv) == "reset":
                pollers.reset()
            if polling.done():
                polling.result()  # raises its error
            pipe.send(pollers.report())
        polling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await polling

    uvloop.run(main())


class Pollers:
    """A context in which the customers poll, in a process of its own."""

    def __init__(self, polls: Polls) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(polls, theirs), daemon=True)

    def __enter__(self) -> Self:
        self._process.start()
        if not self._pipe.poll(START_TIMEOUT_S):
            raise TimeoutError(
                f"the polling process did not begin within {START_TIMEOUT_S} s, so the load test ends: run it again, with less "
                "load on this machine"
            )
        self._pipe.recv()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()

    def reset(self) -> None:
        """Discard the results until now. Called after the warm-up of the API."""
        self._pipe.send("reset")

    def report(self) -> PollingReport:
        """Stop the polls, and return the results since the last reset."""
        self._pipe.send("report")
        report: PollingReport = self._pipe.recv()
        return report
