"""Measure the sink alone: signed requests per CPU-second of the sending process.

Run: `python -m tests.benchmarks.sink [--json FILE]`. Deliveries of 450-byte events to 100 endpoints, each an origin of its own,
go through the product's sender and transport over real sockets. The receiver is a bare protocol in another process, whose CPU
is not counted: it answers each request at once and keeps its connections. `--profile` prints where the time goes instead.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import multiprocessing
import pstats
import resource
import statistics
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import orjson
import uvloop

from delivery.model import Delivery
from delivery.webhooks.http import guard, transport
from delivery.webhooks.sending import sender
from tests.support import builders

ENDPOINTS = 100
EVENT_BYTES = 450
OPEN = guard.Guard(allow_networks=("127.0.0.0/8",), allow_http=True, allow_ports=())
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\nok"


class Receiver(asyncio.Protocol):
    """Answer each complete request, and nothing more."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (head := self._received.find(b"\r\n\r\n")) >= 0:
            at = self._received.index(b"content-length: ", 0, head + 2) + len(b"content-length: ")
            end = head + 4 + int(self._received[at : self._received.index(b"\r\n", at)])
            if len(self._received) < end:
                return
            self._received = self._received[end:]
            self._transport.write(ANSWER)  # type: ignore[attr-defined]


def receive(ready: Connection) -> None:
    """Listen on all loopback addresses until the process is ended."""

    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(Receiver, "0.0.0.0", 0, backlog=4096)
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())


def deliveries(port: int, count: int) -> list[Delivery]:
    """Return deliveries that go round the endpoints."""
    endpoints = [builders.endpoint(f"ep{n}", url=f"http://127.0.0.{n + 1}:{port}/hooks/{n}") for n in range(ENDPOINTS)]
    subscriptions = [builders.subscription(f"s{n}") for n in range(ENDPOINTS)]
    padding = "x" * (EVENT_BYTES - len(orjson.dumps({"amount": 5, "note": ""})))
    return [
        builders.delivery(
            event=builders.event(content={"amount": 5, "note": padding}),
            subscription=subscriptions[n % ENDPOINTS],
            endpoint=endpoints[n % ENDPOINTS],
        )
        for n in range(count)
    ]


async def run(concurrency: int, due: list[Delivery], rounds: int, profile: cProfile.Profile | None) -> list[float]:
    """Return the requests per CPU-second of each round."""
    network = transport.Transport(OPEN)
    using = sender.Sender(network, OPEN, timeout_s=2.0, clock=time.time)

    async def runner(waiting: Iterator[Delivery]) -> None:
        for delivery in waiting:
            attempt = await using.attempt(delivery, 1)
            if attempt.error_class is not None:
                raise RuntimeError(f"{attempt.error_class}: {attempt.detail}")

    async def send() -> float:
        before, waiting = cpu(), iter(due)
        await asyncio.gather(*(runner(waiting) for _ in range(concurrency)))
        return len(due) / (cpu() - before)

    await send()  # connections, targets and caches
    if profile is not None:
        profile.enable()
    rates = [await send() for _ in range(rounds)]
    if profile is not None:
        profile.disable()
    await network.close()
    return rates


def cpu() -> float:
    """Return the CPU seconds that this process has used, in Python and in the kernel."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measure and print a row per concurrency; also as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    ready, of_child = multiprocessing.Pipe()
    receiver = multiprocessing.Process(target=receive, args=(of_child,), daemon=True)
    receiver.start()
    port = ready.recv()
    due = deliveries(port, arguments.requests)
    profile = cProfile.Profile(time.process_time) if arguments.profile else None
    results = {}
    for concurrency in arguments.concurrency:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            rates = runner.run(run(concurrency, due, arguments.rounds, profile))
        results[concurrency] = {
            "requests_per_cpu_s": round(statistics.median(rates)),
            "slowest": round(min(rates)),
            "fastest": round(max(rates)),
        }
        print(f"{concurrency} at once:", results[concurrency])
    receiver.terminate()
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)
    if arguments.json:
        arguments.json.write_bytes(orjson.dumps(results, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS))


if __name__ == "__main__":
    main()
