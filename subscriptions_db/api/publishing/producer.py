"""Write published events to Kafka, and wait until Kafka has confirmed them.

Runs in the API, on its event loop. Guarantee: at least once. An event counts as published when all in-sync replicas have it
(`acks=all`). An unconfirmed event may be in Kafka all the same, so its publisher sends it again, with the same id. The client
connects for the first request that publishes, so an API without publishers needs no Kafka.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import confluent_kafka
from confluent_kafka import KafkaError

from delivery import errors
from delivery.config import kafka_clients, settings
from subscriptions_db.api.contract import problems
from subscriptions_db.api.publishing.checks import Publication

log = logging.getLogger(__name__)

CONFIRM_TIMEOUT_S = 5.0
"""Seconds in which Kafka must confirm an event. Then the client forgets the event, so that it does not arrive much later."""
TOPICS_TIMEOUT_S = 3.0
"""Seconds in which Kafka must list its topics."""
REQUEST_SHARE = 0.5
"""Longest wait for a confirmation, as a share of `api.request_timeout_s`. The longest wait for a list of topics is half as
long. So these waits end before the request times out, and the answer names the reason. The request may time out first in two
cases: the body was slow, or a record batch was too large and its events are written again."""
POLL_S = 0.002
"""Seconds between two polls for confirmations, while events wait for them. The event loop polls, because a separate thread
would wait for the interpreter's lock."""
CLOSE_TIMEOUT_S = 1.0
"""Seconds to wait for unconfirmed events when the API stops. No request waits for them any more."""
MAX_QUEUED_KB = 64 * 1024
"""Maximum kilobytes of unconfirmed events in one client. The server has a smaller bound for the events of requests that still
wait."""

_OPTIONS: dict[str, str | int | float | bool] = {
    "max.in.flight.requests.per.connection": 1,  # with more, an event can repeat (delivery.stages.kafka.sink)
    "partitioner": "murmur2_random",  # of Java clients: events with one key share a partition with those of Java producers
    "compression.type": "lz4",
    "linger.ms": 5,
    "queue.buffering.max.kbytes": MAX_QUEUED_KB,
}


class _Refusal(NamedTuple):
    """The answer to an event that Kafka refuses, and would refuse again."""

    status: int
    problem: str


CHECK = "check the brokers, and that the API's login may describe and write the topics"
"""The operator's next step in messages about Kafka."""
_TOO_LARGE = _Refusal(
    413, "the topic (max.message.bytes) or the platform's Kafka client takes no event of this size: send a smaller one"
)
_REFUSALS = {
    KafkaError.MSG_SIZE_TOO_LARGE: _TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE: _TOO_LARGE,
    KafkaError.INVALID_RECORD: _Refusal(
        422, "the topic takes no such event. A compacted topic takes no event without a key: give a CloudEvent a partitionkey"
    ),
    KafkaError.INVALID_TIMESTAMP: _Refusal(422, "the topic does not take the time of the record: ask the operator"),
    KafkaError.POLICY_VIOLATION: _Refusal(422, "a policy of Kafka forbids the event: ask the operator"),
    KafkaError.TOPIC_AUTHORIZATION_FAILED: _Refusal(
        422, "the platform may not write to the topic: ask the operator to give the API's login to Kafka the right WRITE on it"
    ),
}
"""Error code → the answer, for errors that a repeat of the same event would get again. After other errors, a repeat may
succeed."""
_LOST = frozenset({KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE, KafkaError._FATAL})  # noqa: SLF001  # librdkafka's own codes
"""Codes of errors after which a client may not recover."""


class _Failure(NamedTuple):
    """The reason why an event is not confirmed."""

    topic: str
    error: KafkaError | None
    """None: the broker's answer has no offset."""

    @property
    def text(self) -> str:
        """Return the reason for the log."""
        return f"topic {self.topic}: {'the broker answer has no offset' if self.error is None else self.error.str()}"

    @property
    def refusal(self) -> _Refusal | None:
        """Return the answer for an event that Kafka would refuse again; None if a repeat may succeed."""
        return None if self.error is None else _REFUSALS.get(self.error.code())

    @property
    def is_of_client(self) -> bool:
        """Return True if the Kafka client that sent the event may not recover, so that a new client must replace it."""
        return self.error is None or self.error.fatal() or self.error.code() in _LOST


class _Submission:
    """Some events of one request that wait for their confirmations, by their indexes in the request."""

    def __init__(self, count: int, done: asyncio.Future[None]) -> None:
        self.done = done
        self.failures: dict[int, _Failure] = {}
        self._left = count

    def confirm(self, index: int, error: KafkaError | None, message: confluent_kafka.Message) -> None:
        """Count a confirmation, or a failure. The client calls this method from `poll`, once for each event."""
        self._left -= 1
        if error is not None or message.offset() is None:  # no offset is no confirmation: see delivery.stages.kafka.sink
            self.failures[index] = _Failure(str(message.topic()), error)
        if self._left == 0 and not self.done.done():
            self.done.set_result(None)


class EventProducer:
    """An idempotent producer that connects to Kafka for the first request that publishes. Lives on the event loop."""

    def __init__(self, kafka: settings.KafkaSettings, request_timeout_s: float) -> None:
        self._kafka = kafka
        self._confirm_s = min(CONFIRM_TIMEOUT_S, request_timeout_s * REQUEST_SHARE)
        self._topics_s = min(TOPICS_TIMEOUT_S, request_timeout_s * REQUEST_SHARE / 2)
        self._current: dict[bool, confluent_kafka.Producer] = {}
        """The client for record batches (False), and the client that writes each event in a record batch of its own (True)."""
        self._polled: set[confluent_kafka.Producer] = set()
        """Clients with unconfirmed events. After a failure there may be two: the failed one, and its successor."""
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="topics")

    def close(self) -> None:
        """Wait until a running call of `topics` ends. Then wait for Kafka's confirmations of the events of each client.

        The second wait takes at most CLOSE_TIMEOUT_S for each client, also if events are still unconfirmed.
        """
        self._thread.shutdown()
        for client in self._polled.union(self._current.values()):
            client.flush(CLOSE_TIMEOUT_S)

    async def topics(self) -> frozenset[str]:
        """Return the names of all topics that the API's login may see.

        Raise KafkaUnavailable if Kafka does not list them in time, or if no Kafka client can be made. A request for all topics
        creates none, even where the broker creates topics by itself.
        """
        client = self._client()
        listing = functools.partial(client.list_topics, timeout=self._topics_s)
        try:
            return frozenset((await asyncio.get_running_loop().run_in_executor(self._thread, listing)).topics)
        except confluent_kafka.KafkaException as exc:
            raise errors.KafkaUnavailable(f"Kafka does not list its topics ({exc.args[0].str()}): {CHECK}") from exc

    async def publish(
        self, events: Sequence[Publication], on_written: Callable[[Sequence[Publication]], None] = lambda _: None
    ) -> list[str]:
        """Write events, and return their ids when Kafka has confirmed all of them.

        Raise Refused for an event that Kafka would refuse again, and KafkaUnavailable if a repeat may succeed. After a failure,
        Kafka may have some of the events. `on_written` is called once, also after a failure, with the events that Kafka has or
        may have; perhaps none.
        """
        refused: set[int] = set()
        try:
            return await self._publish(events, refused)
        finally:
            on_written([event for index, event in enumerate(events) if index not in refused])

    async def _publish(self, events: Sequence[Publication], refused: set[int]) -> list[str]:
        """Write events, and return their ids once Kafka has confirmed all.

        Events of a record batch that was too large are written again, each alone.

        Raise Refused or KafkaUnavailable as `publish`. Add the indexes of the events that are certainly not in Kafka to
        `refused`.
        """
        numbered = dict(enumerate(events))
        failures = (await self._submit(numbered, refused)).failures
        large = {index: numbered[index] for index, failure in failures.items() if failure.refusal is _TOO_LARGE}
        if large:
            # The broker refuses a whole record batch, which may have events of other requests. An event is too large only if
            # the broker refuses it alone.
            refused.difference_update(large)
            alone = await self._submit(large, refused, is_alone=True)
            failures = {index: failure for index, failure in failures.items() if index not in large} | alone.failures
        if failures:
            raise _failed(events, failures)
        return [event.event_id for event in events]

    async def _submit(self, events: Mapping[int, Publication], refused: set[int], *, is_alone: bool = False) -> _Submission:
        """Write events. When each event is confirmed or has failed, return the submission, which has the failures.

        With `is_alone`, each event is a record batch of its own.

        If the client does not take an event, raise Refused or KafkaUnavailable at once, without waiting for the other events.
        Add the indexes of the events that are certainly not in Kafka to `refused`, also after an error.
        """
        submitted = _Submission(len(events), asyncio.get_running_loop().create_future())
        if not events:
            return submitted
        refused.update(events)  # until the client takes them
        client = self._client(is_alone=is_alone)
        try:
            for index, event in events.items():
                client.produce(
                    event.topic,
                    event.value,
                    key=event.key,
                    headers=list(event.headers),
                    on_delivery=functools.partial(submitted.confirm, index),
                )
                refused.discard(index)
        except confluent_kafka.KafkaException as exc:
            self._poll_later(client)
            failure = _Failure(event.topic, exc.args[0])
            if failure.refusal is None:
                self._replace(client)
            raise _failed(events, {index: failure}) from exc
        except BufferError as exc:
            self._poll_later(client)
            self._replace(client)
            raise errors.KafkaUnavailable(
                f"the Kafka client has no room for an event ({exc}), because earlier ones are unconfirmed: {CHECK}"
            ) from exc
        self._poll_later(client)
        await submitted.done
        refused.update(index for index, failure in submitted.failures.items() if failure.refusal is not None)
        if any(failure.is_of_client for failure in submitted.failures.values()):
            self._replace(client)
        return submitted

    def _client(self, *, is_alone: bool = False) -> confluent_kafka.Producer:
        if is_alone not in self._current:
            # Idempotent: acks=all; a retry by the client neither repeats an event nor reorders two.
            # These options come last: `kafka.librdkafka_options` are meant for the job too, which waits much longer for Kafka.
            ours = {"enable.idempotence": True, "delivery.timeout.ms": round(self._confirm_s * 1000)}
            ours |= {"batch.num.messages": 1} if is_alone else {}
            try:
                made = kafka_clients.producer(self._kafka, _OPTIONS, ours)
            except (errors.SettingsError, confluent_kafka.KafkaException) as exc:
                raise errors.KafkaUnavailable(
                    f"no Kafka client can be made ({exc}), so the events were not published. Correct the settings of the area "
                    "kafka, and restart the API"
                ) from exc
            self._current[is_alone] = made
        return self._current[is_alone]

    def _replace(self, client: confluent_kafka.Producer) -> None:
        """Forget a client, so that the next event creates a new one.

        A client with a fatal error or a timeout may not recover.
        """
        self._current = {is_alone: current for is_alone, current in self._current.items() if current is not client}

    def _poll_later(self, client: confluent_kafka.Producer) -> None:
        if client not in self._polled:
            self._polled.add(client)
            asyncio.get_running_loop().call_later(POLL_S, self._poll, client)

    def _poll(self, client: confluent_kafka.Producer) -> None:
        """Take the confirmations that have come, and schedule the next poll until the client has no unconfirmed event."""
        client.poll(0)
        if len(client):
            asyncio.get_running_loop().call_later(POLL_S, self._poll, client)
        else:
            self._polled.discard(client)


def _failed(
    events: Sequence[Publication] | Mapping[int, Publication], failures: Mapping[int, _Failure]
) -> problems.Refused | errors.KafkaUnavailable:
    """Return the error for a request with failed events. The keys of both arguments are indexes of events in the request.

    If Kafka would refuse an event again, return Refused, which names the first such event, and log this refusal. Else return
    KafkaUnavailable.
    """
    for index, failure in sorted(failures.items()):
        if (refusal := failure.refusal) is not None:
            log.warning(
                "a request to publish events is answered with %d, because Kafka refuses an event (%s). The answer says: %s. "
                "Kafka may have other events of the request. The answer asks the sender to send all again once this is solved",
                refusal.status,
                failure.text,
                refusal.problem,
            )
            place = events[index].place
            again = "Kafka may have other events of the request: once this is solved, send all again with the same ids"
            detail = f"{place + ', ' if place else ''}topic {failure.topic}: {refusal.problem}. {again}"
            return problems.Refused(refusal.status, detail, (place, refusal.problem))
    return errors.KafkaUnavailable(f"{next(iter(failures.values())).text}: {CHECK}")
