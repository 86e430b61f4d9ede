"""Write published events to Kafka, and wait until Kafka has confirmed them.

Runs in the API, on its event loop. Guarantee: at least once. An event counts as published when all in-sync replicas have it
(`acks=all`). An unconfirmed event may be in Kafka all the same; its publisher repeats it, with the same id. The first event
connects: an API without publishers needs no Kafka.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import logging
from collections.abc import Sequence

import confluent_kafka

from delivery import errors
from delivery.config import kafka_clients, settings
from subscriptions_db.api.publishing.checks import Publication

log = logging.getLogger(__name__)

CONFIRM_TIMEOUT_S = 5.0
"""Seconds in which Kafka must confirm an event. Then the client forgets the event, so that it does not arrive much later."""
TOPICS_TIMEOUT_S = 3.0
"""Seconds in which Kafka must list its topics."""
REQUEST_SHARE = 0.5
"""Share of `api.request_timeout_s` that is the longest wait for a confirmation, and for a list of topics half of it. So the
answer names the reason before the request's own time is over."""
POLL_S = 0.002
"""Seconds between two looks for confirmations, while events wait for them. The event loop looks, because a thread of its own
would wait for the interpreter's lock."""
CLOSE_TIMEOUT_S = 1.0
"""Seconds for unconfirmed events at the end. No request waits for them any more."""
MAX_QUEUED_KB = 64 * 1024
"""Kilobytes of events in the client. The server has a smaller bound for the events of requests that still wait."""

_OPTIONS: dict[str, str | int | float | bool] = {
    "max.in.flight.requests.per.connection": 1,  # delivery.stages.kafka.sink says why
    "partitioner": "murmur2_random",  # as Java clients: events with one key are in one partition, whoever publishes them
    "compression.type": "lz4",
    "linger.ms": 5,
    "queue.buffering.max.kbytes": MAX_QUEUED_KB,
}


class _Submission:
    """The events of one request that wait for their confirmations."""

    def __init__(self, events: Sequence[Publication], done: asyncio.Future[None]) -> None:
        self.ids = [event.event_id for event in events]
        self.done = done
        self.failure: str | None = None
        self._left = len(events)

    def confirm(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        """Count a confirmation, or a failure. The client calls it from `poll`, once for each event."""
        self._left -= 1
        if error is not None:
            self.failure = f"topic {message.topic()}: {error.str()}"
        elif message.offset() is None:  # not a confirmation: see delivery.stages.kafka.sink
            self.failure = f"topic {message.topic()}: the broker's answer has no offset"
        if self._left == 0 and not self.done.done():
            self.done.set_result(None)

    def place(self, index: int, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        """Do as `confirm` does, for an event whose id is its place."""
        if error is None:
            self.ids[index] = f"{message.topic()}:{message.partition()}:{message.offset()}"
        self.confirm(error, message)


class EventProducer:
    """A lazy, idempotent producer. Lives on the event loop."""

    def __init__(self, kafka: settings.Kafka, request_timeout_s: float) -> None:
        self._kafka = kafka
        self._confirm_s = min(CONFIRM_TIMEOUT_S, request_timeout_s * REQUEST_SHARE)
        self._topics_s = min(TOPICS_TIMEOUT_S, request_timeout_s * REQUEST_SHARE / 2)
        self._current: confluent_kafka.Producer | None = None
        self._polled: set[confluent_kafka.Producer] = set()
        """Clients with unconfirmed events. After a failure there may be two: the failed one, and its successor."""
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="topics")

    def close(self) -> None:
        """Close the connections to Kafka."""
        self._thread.shutdown()
        for client in self._polled | ({self._current} if self._current else set()):
            client.flush(CLOSE_TIMEOUT_S)

    async def topics(self) -> frozenset[str]:
        """Return the names of all topics; raise KafkaUnavailable if Kafka does not list them in time.

        A request for all topics creates none, even where the broker creates topics by itself.
        """
        client = self._client()
        listing = functools.partial(client.list_topics, timeout=self._topics_s)
        try:
            return frozenset((await asyncio.get_running_loop().run_in_executor(self._thread, listing)).topics)
        except confluent_kafka.KafkaException as exc:
            raise errors.KafkaUnavailable(f"Kafka does not list its topics: {exc.args[0].str()}") from exc

    async def publish(self, events: Sequence[Publication]) -> list[str]:
        """Write events, and return their ids when Kafka has confirmed all of them; raise KafkaUnavailable otherwise.

        After a failure, Kafka may have some of the events.
        """
        if not events:
            return []
        client = self._client()
        submitted = _Submission(events, asyncio.get_running_loop().create_future())
        try:
            for index, event in enumerate(events):
                client.produce(
                    event.topic,
                    event.value,
                    key=event.key,
                    headers=list(event.headers),
                    on_delivery=submitted.confirm if event.event_id else functools.partial(submitted.place, index),
                )
        except (BufferError, confluent_kafka.KafkaException) as exc:
            self._poll_later(client)
            self._replace(client)
            raise errors.KafkaUnavailable(f"the client does not take an event: {exc}") from exc
        self._poll_later(client)
        await submitted.done
        if submitted.failure is not None:
            self._replace(client)
            raise errors.KafkaUnavailable(submitted.failure)
        return [str(event_id) for event_id in submitted.ids]

    def _client(self) -> confluent_kafka.Producer:
        if self._current is None:
            # Idempotent: acks=all; a retry by the client neither repeats an event nor reorders two.
            # Last, because `kafka.librdkafka_options` are meant for the job too, which waits much longer for Kafka.
            ours = {"enable.idempotence": True, "delivery.timeout.ms": round(self._confirm_s * 1000)}
            try:
                self._current = confluent_kafka.Producer(_OPTIONS | kafka_clients.for_librdkafka(self._kafka) | ours)
            except confluent_kafka.KafkaException as exc:
                raise errors.KafkaUnavailable(f"the settings of the area kafka make no client: {exc.args[0].str()}") from exc
        return self._current

    def _replace(self, client: confluent_kafka.Producer) -> None:
        """Let the next event make a new client: one that has failed may not recover (delivery.stages.kafka.sink)."""
        if self._current is client:
            self._current = None

    def _poll_later(self, client: confluent_kafka.Producer) -> None:
        if client not in self._polled:
            self._polled.add(client)
            asyncio.get_running_loop().call_later(POLL_S, self._poll, client)

    def _poll(self, client: confluent_kafka.Producer) -> None:
        """Take the confirmations that have come. Repeats itself until the client has no unconfirmed event."""
        client.poll(0)
        if len(client):
            asyncio.get_running_loop().call_later(POLL_S, self._poll, client)
        else:
            self._polled.discard(client)
