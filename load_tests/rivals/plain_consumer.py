"""Deliver events with a plain asyncio consumer, such as a good engineer would write in two days, without the platform.

Run: `python -m load_tests.rivals.plain_consumer` in a folder with `local.toml`. SIGTERM ends it after the current chunk.

The loop takes a chunk from Kafka, sends the chunk's requests, waits for all responses, and commits the offsets. The
consumer has the platform's parsing, routing, payloads and signatures. It has the platform's bounds on requests in flight, in
all and to one endpoint, and the platform's time limit of an attempt. uvloop and kept connections make it reasonably fast.

The consumer leaves out, on purpose:

1. Retries. A failed request is logged and dropped, so its event is lost. There are no dead letters, and no redrive.
2. A log of attempts. Nothing proves afterwards what was delivered.
3. Isolation. A chunk ends with its slowest response, so one hanging endpoint delays the events of all others.
4. Batches, order by key, rate limits, circuit breakers, and pauses of endpoints.
5. Changes of the registry. The plain consumer reads the registry once, at the start.
6. The check of the endpoint's address at the connection (SSRF protection), and OAuth. An event for an endpoint with OAuth ends
   the consumer.
7. Scaling by itself. More processes in the same consumer group share the partitions.

Delivery is at least once, apart from dropped requests: after SIGKILL, events since the last commit repeat.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import logging
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import aiohttp
import confluent_kafka
import uvloop
import yarl

from delivery import errors
from delivery.config import kafka_clients, plan_builder, settings, settings_loader
from delivery.registry_model import Endpoint, EndpointId
from delivery.stages.kafka import record_reader
from delivery.webhooks.routing import matching
from delivery.webhooks.sending import request as request_heads
from load_tests.rivals import routed_requests
from subscriptions_db.postgres import connect
from subscriptions_db.secrets import keyring
from subscriptions_db.snapshot import registry_reader

log = logging.getLogger(__name__)

GROUP = "rival"
"""The consumer group in Kafka."""
CHUNK_RECORDS = 1_000
"""Maximum number of records in a chunk. Each chunk waits for its slowest response. With larger chunks there are fewer such
waits, and more deliveries repeat after SIGKILL."""
POLL_S = 0.1
"""Seconds to wait for the first record of a chunk. SIGTERM takes effect after at most this long."""
RECORDS_BETWEEN_IO = 32
"""Records after which the event loop runs once, so that requests leave while the chunk is still parsed."""
SESSION_TIMEOUT_MS = 6_000
"""Milliseconds until Kafka gives the partitions of a killed consumer to another consumer. The client's default is 45
seconds."""
COMMIT_EVERY_S = 0.1
"""Seconds between two commits. At a steady pace, chunks have few records. A commit for each chunk would queue up for seconds in
the Kafka client. After SIGKILL, the events of all queued commits would repeat."""


class Destination(NamedTuple):
    """The unchanging parts of an endpoint's requests, and the bound on its requests in flight."""

    url: yarl.URL
    headers: dict[str, str]
    free: asyncio.Semaphore


class PlainConsumer:
    """One consumer with one HTTP client. Made and used in one event loop."""

    def __init__(self, config: settings.Settings, http: aiohttp.ClientSession) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        """Numbers of `delivered` requests, of dropped requests by status or exception, and of `rejected` records."""
        self._guard = plan_builder.guard_of(config.delivery)
        self._layout = plan_builder.layout_of(config)
        self._bound = config.delivery.max_in_flight_per_endpoint
        self._http = http
        with connect.connect(config.database, application_name="rival") as connection:
            ring = keyring.KeyRing.from_settings(config.keys)
            self._router = matching.Router(registry_reader.read_full(connection, ring, self._guard))
        self._destinations: dict[EndpointId, Destination] = {}
        own = {
            "group.id": GROUP,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,  # else a commit may include records that were read and not delivered yet
            "auto.offset.reset": "earliest",
            "session.timeout.ms": SESSION_TIMEOUT_MS,
        }
        self._consumer = kafka_clients.consumer(config.kafka, own)
        self._consumer.subscribe([f"^{config.source.topic_pattern}$"])

    async def run(self, stop: asyncio.Event) -> None:
        """Deliver chunk after chunk until `stop` is set.

        An offset is committed only after the record was rejected, or each of its requests was answered or dropped.
        """
        loop = asyncio.get_running_loop()
        has_news, commit_at = False, loop.time()
        with concurrent.futures.ThreadPoolExecutor(1) as polling, contextlib.closing(self._consumer):
            while not stop.is_set():
                messages = await loop.run_in_executor(polling, self._next_chunk)
                if messages:
                    await self._deliver(messages)
                    for message in messages:
                        if not message.error():
                            self._consumer.store_offsets(message)
                    has_news = True
                if has_news and loop.time() >= commit_at:
                    self._consumer.commit(asynchronous=True)
                    has_news, commit_at = False, loop.time() + COMMIT_EVERY_S
            if has_news:
                self._consumer.commit(asynchronous=False)

    def _next_chunk(self) -> Sequence[confluent_kafka.Message]:
        """Wait up to POLL_S for a record, and return a chunk: this record, and further records that are fetched already.

        The chunk is empty if no record came. It has at most CHUNK_RECORDS records.
        """
        first = self._consumer.poll(POLL_S)
        if first is None:
            return ()
        return [first, *self._consumer.consume(CHUNK_RECORDS - 1, timeout=0)]

    async def _deliver(self, messages: Sequence[confluent_kafka.Message]) -> None:
        """Send all requests that are due for the records of a chunk, and wait for their responses."""
        async with asyncio.TaskGroup() as group:
            for count, message in enumerate(messages, start=1):
                if message.error():
                    log.warning(
                        "Kafka gave an error in place of a record: %s. The consumer continues: check the broker",
                        message.error(),
                    )
                    continue
                try:
                    record = record_reader.record_of(message)
                    for request in routed_requests.requests_of(record, self._router, self._layout):
                        group.create_task(self._post(request))
                except errors.EventRejected as exc:
                    self.counts["rejected"] += 1
                    log.warning("dropped record %s:%d:%d: %s", message.topic(), message.partition(), message.offset(), exc)
                if count % RECORDS_BETWEEN_IO == 0:
                    await asyncio.sleep(0)

    async def _post(self, request: routed_requests.RoutedRequest) -> None:
        """Make the only attempt at a request. A failure is counted and logged."""
        to = self._destinations.get(request.endpoint.endpoint_id) or self._destination(request.endpoint)
        async with to.free:
            headers = to.headers | routed_requests.headers_of(request, int(time.time()))
            try:
                async with self._http.post(to.url, data=request.body, headers=headers, allow_redirects=False) as response:
                    await response.read()
            except (aiohttp.ClientError, OSError) as exc:  # TimeoutError is an OSError
                result = type(exc).__name__
            else:
                result = "delivered" if 200 <= response.status < 300 else f"status {response.status}"
        self.counts[result] += 1
        if result != "delivered":
            log.warning(
                "dropped %s for endpoint %s, without a retry: %s", request.webhook_id, request.endpoint.endpoint_id, result
            )

    def _destination(self, endpoint: Endpoint) -> Destination:
        """Return the unchanging parts of requests to an endpoint, and keep them for its next request.

        Raise TargetRefused, which ends the consumer, if the endpoint has OAuth, or if its settings allow no valid request.
        """
        target = request_heads.prepare(endpoint, self._guard)
        if target.grant is not None:
            raise errors.TargetRefused(
                "auth",
                f"endpoint {endpoint.endpoint_id} has OAuth, which the plain consumer lacks. The consumer ends: remove "
                "the endpoint",
            )
        _, _, lines = target.head.partition(b"\r\n")
        made = Destination(target.url, routed_requests.fields_of(lines), asyncio.Semaphore(self._bound))
        self._destinations[endpoint.endpoint_id] = made
        return made


def http_client(config: settings.Settings) -> aiohttp.ClientSession:
    """Return the HTTP client, with the bounds that a worker of the platform has. Called inside the event loop."""
    lane = config.delivery
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=lane.max_in_flight),
        timeout=aiohttp.ClientTimeout(total=lane.attempt_timeout_s),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )


async def main() -> None:
    """Deliver until SIGTERM, by the settings in the environment and in `local.toml` of the current folder."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    config = settings_loader.read(os.environ, Path("local.toml"))
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with http_client(config) as http:
        consumer = PlainConsumer(config, http)
        await consumer.run(stop)
    log.info("ended: %s", dict(consumer.counts))


if __name__ == "__main__":
    uvloop.run(main())
