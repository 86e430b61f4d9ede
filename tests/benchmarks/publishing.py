"""Measure publishing over HTTP: events at a fixed rate, in batches and one by one, to a Kafka on this machine.

Run: `python -m tests.benchmarks.publishing [events a second] [events in a request] [seconds]`. Requests begin when they are
due, also while earlier requests are still in flight. A latency counts from then on. Server, client, Kafka and Postgres are
processes of their own and share the machine. The CPU is that of the server's process.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import multiprocessing
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import aiohttp
import orjson

from delivery.config import settings
from delivery.stages.kafka import topics
from fanout.jvm import jars
from fanout.local import kafka_server, postgres_server
from tests.integration.api import world

CONTENT_TYPES = {"plain": "application/json", "CloudEvents": "application/cloudevents-batch+json"}


def body(kind: str, first: int, count: int) -> bytes:
    """Return a body of `count` events of some 450 bytes each."""
    tenant, content = {"plain": ("tenant_id", "note"), "CloudEvents": ("tenantid", "data")}[kind]
    beside = {"specversion": "1.0", "source": "shop"} if kind == "CloudEvents" else {}
    return orjson.dumps(
        [
            {"id": f"event-{first + number}", "type": "order.created", tenant: "t1", content: "x" * 350} | beside
            for number in range(count)
        ]
    )


class Load(NamedTuple):
    """Events to publish."""

    port: int
    key: str
    kind: str
    rate: float
    """Events a second."""
    count: int
    """Events of one request."""
    seconds: float


async def load(wanted: Load) -> tuple[list[float], int]:
    """Return the latencies of the accepted requests, and the number of the others."""
    port, key, kind, rate, count, seconds = wanted
    headers = {"authorization": f"Bearer {key}", "content-type": CONTENT_TYPES[kind]}
    latencies, refused = [], 0
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", connector=aiohttp.TCPConnector(limit=100)) as session:

        async def publish(due: float, sent: bytes) -> None:
            nonlocal refused
            async with session.post("/v1/events", data=sent, headers=headers) as response:
                await response.read()
                if response.status == 202:
                    latencies.append(time.perf_counter() - due)
                else:
                    refused += 1

        began, tasks = time.perf_counter(), []
        for number in range(int(rate * seconds / count)):
            due = began + number * count / rate
            await asyncio.sleep(max(0, due - time.perf_counter()))
            tasks.append(asyncio.create_task(publish(due, body(kind, number * count, count))))
        await asyncio.gather(*tasks)
    return latencies, refused


def loaded(wanted: Load) -> tuple[list[float], int]:
    """Run `load` in a process of its own."""
    return asyncio.run(load(wanted))


def main(rate: float, count: int, seconds: float) -> None:
    spawning = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        broker = kafka_server.EmbeddedKafka(Path(folder) / "kafka", libraries=jars.ensure())
        server = postgres_server.EmbeddedPostgres(Path(folder) / "postgres")
        broker.start()
        server.start()
        try:
            connection = settings.KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
            topics.ensure(connection, ["events.order.created"], 4)
            with (
                world.served(
                    server, kafka=connection, max_events_per_s=1_000_000, max_publishing_requests_per_s=1_000_000
                ) as served,
                concurrent.futures.ProcessPoolExecutor(1, spawning) as client,
            ):
                for kind in CONTENT_TYPES:
                    asked = Load(served.port, served.keys["publisher"], kind, rate, count, seconds)
                    client.submit(loaded, asked._replace(rate=rate / 2, seconds=3)).result()  # connections
                    began, cpu = time.monotonic(), time.process_time()
                    latencies, refused = client.submit(loaded, asked).result()
                    took, spent = time.monotonic() - began, time.process_time() - cpu
                    cuts = statistics.quantiles(latencies, n=100)
                    print(
                        f"{kind:12} {rate:g}/s by {count:4}: {len(latencies) * count / took:7.0f} events/s, {refused} refused, "
                        f"p50 {cuts[49] * 1000:6.1f} ms, p99 {cuts[98] * 1000:6.1f} ms, "
                        f"CPU {spent / len(latencies) / count * 1e6:6.1f} us an event"
                    )
        finally:
            server.stop()
            broker.kill()


if __name__ == "__main__":
    main(*(float(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])) if len(sys.argv) > 3 else (5000, 100, 10))
