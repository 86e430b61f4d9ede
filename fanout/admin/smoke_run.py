"""`fanout smoke-test`: deliver one signed event through the running job, and clean up.

Runs in `fanout` commands. Registers an endpoint and a subscription, publishes an event to Kafka, and waits for two proofs:

1. The delivery log (the attempts topic) has an attempt that the endpoint answered with 2xx.
2. The receiver got the event with a valid signature. This proof is needed only if the command itself opens the receiver.

The tenant, the customer and the topic of the test stay. A deleted topic would stop the lanes. A deleted tenant would turn an
event that another lane has not read yet into a rejected record. Several tests may run on one registry at the same time. Each
test deletes its own endpoint. A test that is killed leaves its endpoint behind, and a later test deletes that endpoint after
LEFT_AFTER.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import confluent_kafka
import msgspec
import orjson

from delivery import errors
from delivery.config import kafka_clients, plan_builder, settings, topic_pattern
from delivery.model import Record
from delivery.stages.kafka import topics
from delivery.webhooks.events import parsing
from delivery.webhooks.results import log_records
from delivery.webhooks.results.log_entries import ATTEMPTED
from delivery.webhooks.results.log_records import LogRecord
from fanout.admin import registry_commands
from fanout.kafka import publishing, topic_scanner
from fanout.local import receiver
from subscriptions_db.manifest import manifest

NAME = "fanout-smoke-test"
"""One name with four uses: the tenant's id, the customer's id, the event type, and the topic's name after
`source.topic_prefix`."""
PUBLISH_EVERY_S = 5
"""Seconds after which the event is published again. A micro-batch that was planned before the endpoint was registered routes
the first copy by the older registry."""
LEFT_AFTER = dt.timedelta(hours=1)
"""Age from which an endpoint of the test's customer is deleted as left over. An endpoint of a running test is younger, unless
the `--timeout` of the test is longer."""
POLL_S = 0.25
"""Seconds between two checks of the delivery log and the receiver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Result of the test."""

    url: str
    is_signature_checked: bool
    """True: the endpoint is the receiver of the command, which checks signatures. False: only the status of the endpoint's
    answer is known."""
    published: int
    """Copies of the event. More than one: there was no proof of a delivery within PUBLISH_EVERY_S."""
    delivered_after_s: float | None
    """Seconds from the first copy to the proof; None: no proof in time."""
    seen: tuple[str, ...]
    """Entries of the delivery log about the endpoint, in order, such as `200`, `timeout` or `postponed: slow`."""

    def document(self) -> dict[str, Any]:
        """Return the result for JSON output: a dictionary with `delivered` (true or false) and the fields of this class."""
        return {"delivered": self.delivered_after_s is not None, **asdict(self)}

    def text(self) -> str:
        """Return the result as one line for a person."""
        if self.delivered_after_s is not None:
            proof = (
                "the signature is valid" if self.is_signature_checked else "answered with 2xx; the signature was not checked"
            )
            return f"delivered to {_shown(self.url)} after {self.delivered_after_s:.1f} s: {proof}"
        if self.seen:
            why = (
                f"the delivery log says: {', '.join(self.seen)}. Check that the job reaches this URL, and that the endpoint "
                "answers 2xx. If the log has a 2xx, another program answered at this URL, or the signature is wrong"
            )
        else:
            why = "the delivery log has no attempt: check with `fanout doctor` that the job is ready and runs the direct lane"
        return f"no delivery to {_shown(self.url)} was seen (published copies of the event: {self.published}): {why}"


def run(
    config: settings.Settings,
    *,
    host: str,
    port: int,
    endpoint_url: str | None,
    timeout_s: float,
    sleep: Callable[[float], None],
) -> Result:
    """Deliver an event to `endpoint_url`, or to a receiver in this process at `host` and `port`; return the result.

    Wait for the delivery for at most `timeout_s`, and publish the event again every PUBLISH_EVERY_S. Raise SettingsError,
    before anything is published, if the job would not read or accept the event, or if its guard refuses the URL. Raise
    LocalStackError if the port cannot be opened. Raise KafkaUnavailable if there is no attempts topic, or if Kafka does not
    answer or refuses a request. Raise RegistryUnavailable, RegistryOutdated, RegistrationError or SettingsError if the endpoint
    cannot be registered, or cannot be deleted at the end: a later test then deletes it.
    """
    topic = config.source.topic_prefix + NAME
    message = publishing.Message(topic=topic, value=event(config.source, str(uuid.uuid4())))
    require_readable(config, message)
    with contextlib.ExitStack() as stack:
        arrivals = Arrivals()
        url = endpoint_url
        if url is None:
            require_allowed(config, f"http://{receiver.in_url(host)}:{port}/")
            url = f"{stack.enter_context(arrivals.receiving(host, port)).url}/{NAME}"
        else:
            require_allowed(config, url)
        endpoint_id = f"{NAME}-{uuid.uuid4().hex[:12]}"
        log = stack.enter_context(contextlib.closing(DeliveryLog(config, endpoint_id)))
        arrivals.secret = stack.enter_context(registered(config, endpoint_id, url))
        began, published, took_s = time.monotonic(), 0, None
        while (passed_s := time.monotonic() - began) < timeout_s:
            if passed_s >= published * PUBLISH_EVERY_S:
                publishing.publish_all(config, [message])
                published += 1
            log.poll()
            if log.seen.has_accepted and (endpoint_url is not None or arrivals.has_verified):
                took_s = time.monotonic() - began
                break
            sleep(POLL_S)
    return Result(
        url=url,
        is_signature_checked=endpoint_url is None,
        published=published,
        delivered_after_s=took_s,
        seen=tuple(log.seen.words),
    )


def event(source: settings.SourceSettings, event_id: str) -> bytes:
    """Return the test event as JSON, with id, type, tenant and time in the fields that the settings name.

    Raise SettingsError if one of these fields lies within another, such as `event.id` within `event`.
    """
    document: dict[str, Any] = {}
    now = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
    attributes = {
        source.id_field: event_id,
        source.type_field: NAME,
        source.tenant_field: NAME,
        source.time_field: now,
    }
    for path, value in attributes.items():
        if inner := next((other for other in attributes if other.startswith(f"{path}.")), None):
            raise errors.SettingsError(
                f"no event can have both the field {path} and the field {inner}, so nothing was published: correct the "
                "settings source.*_field, which name the fields of an event"
            )
        *parents, last = path.split(".")
        part = document
        for name in parents:
            part = part.setdefault(name, {})
        part[last] = value
    return orjson.dumps({"note": "an event of `fanout smoke-test`", **document})


def require_readable(config: settings.Settings, message: publishing.Message) -> None:
    """Raise SettingsError unless the job reads the topic and accepts the event."""
    if not topic_pattern.matches(config.source.topic_pattern, message.topic):
        raise errors.SettingsError(
            f"source.topic_pattern does not match {message.topic}, so the job would not read the event, and nothing was "
            "published: change source.topic_pattern or source.topic_prefix"
        )
    record = Record(topic=message.topic, partition=0, offset=0, appended_at_ms=0, value=message.value)
    try:
        parsing.parse(record, plan_builder.layout_of(config))
    except errors.EventRejected as exc:
        raise errors.SettingsError(
            f"the job would reject the event ({exc.reason}: {exc.detail}), so nothing was published: correct the settings "
            "source.*, which name the fields of an event"
        ) from None


def require_allowed(config: settings.Settings, url: str) -> None:
    """Raise SettingsError if the job's address guard refuses `url`."""
    try:
        plan_builder.guard_of(config.delivery).check_url(url)
    except errors.TargetRefused as exc:
        raise errors.SettingsError(
            f"the job's address guard refuses {_shown(url)} ({exc}), so nothing was published. Name an endpoint that the guard "
            "permits and that answers 2xx: --endpoint-url https://…. For development, permit the URL by "
            "delivery.allow_http, delivery.allow_networks and delivery.allow_ports"
        ) from None


def _shown(url: str) -> str:
    """Return a URL for a message: without its query, which may hold a secret."""
    return url.partition("?")[0]


@contextlib.contextmanager
def registered(config: settings.Settings, endpoint_id: str, url: str) -> Iterator[str]:
    """Register the test's tenant, customer, endpoint and subscription, and yield the endpoint's signing secret.

    At the beginning, delete the endpoints that tests registered more than LEFT_AFTER ago. At the end of the context, delete the
    endpoint and the subscription.
    """
    kept: dict[str, Any] = {"tenants": [{"id": NAME}], "customers": [{"id": NAME, "name": "fanout smoke-test"}]}
    endpoint = {"id": endpoint_id, "customer": NAME, "url": url}
    subscription = {"id": endpoint_id, "endpoint": endpoint_id, "event_type": NAME, "tenants": [NAME]}
    guard = plan_builder.guard_of(config.delivery)
    wanted = manifest.check(kept | {"endpoints": [endpoint], "subscriptions": [subscription]}, guard)
    registry_commands.delete_endpoints(config, _left_over(config))
    try:
        yield registry_commands.apply_manifest(config, wanted).new_secrets[endpoint_id]
    finally:
        registry_commands.delete_endpoints(config, [endpoint_id])


def _left_over(config: settings.Settings) -> list[str]:
    """Return the ids of the endpoints that tests registered more than LEFT_AFTER ago."""
    before = dt.datetime.now(dt.UTC) - LEFT_AFTER
    rows = registry_commands.get(config, registry_commands.kind_of("endpoints"), None)
    return [row["id"] for row in rows if row["customer"] == NAME and row["created_at"] < before]


@dataclass(slots=True)
class Arrivals:
    """Remembers whether the receiver of the command got a request with a valid signature."""

    secret: str = ""
    has_verified: bool = False

    def receiving(self, host: str, port: int) -> receiver.Receiver:
        """Return a receiver that reports its requests to this object. The receiver opens its port when its context opens."""
        return receiver.Receiver(
            secrets_of=lambda _: [self.secret],
            on_received=self._add,
            verify=receiver.is_signed_by_hmac,
            host=host,
            port=port,
            remedy="choose another port with --port, or name an address of this machine with --host",
        )

    def _add(self, received: receiver.Received) -> None:
        self.has_verified |= received.is_verified


@dataclass(slots=True)
class Seen:
    """Entries of the delivery log about the test's endpoint."""

    words: list[str] = field(default_factory=list)
    """A text for each entry, as in `Result.seen`."""
    has_accepted: bool = False
    """True after an attempt that the endpoint answered with 2xx."""

    def add(self, value: bytes) -> None:
        """Append a text to `words` for each entry of a record of the delivery log; for an unreadable one `unreadable record`.

        `value` must be a record about the test's endpoint.
        """
        try:
            record = log_records.decode(value)
        except msgspec.DecodeError:
            self.words.append("unreadable record")
            return
        for entry in record.entries if isinstance(record, LogRecord) else ():
            if isinstance(entry, ATTEMPTED):
                self.words.append(str(entry.error_class or entry.status))
                self.has_accepted |= entry.error_class is None
            else:
                kind, reason = str(entry.__struct_config__.tag), getattr(entry, "reason", None)
                self.words.append(f"{kind}: {reason}" if reason else kind)


class DeliveryLog:
    """Read the records about one endpoint that arrive in the attempts topic after this object was created.

    The constructor raises KafkaUnavailable if there is no attempts topic, or if Kafka does not answer.
    """

    def __init__(self, config: settings.Settings, endpoint_id: str) -> None:
        name = config.delivery.attempts_topic
        with contextlib.closing(topic_scanner.Scanner(config.kafka)) as scanner:
            extents = scanner.extents([name])
        if not extents:
            raise errors.KafkaUnavailable(
                f"there is no topic {name} on {config.kafka.bootstrap_servers} that this login may describe, so nothing was "
                "tested: the job has not created it, or it has another name. Start the job, set delivery.attempts_topic, or "
                "grant Describe on the topic to the login"
            )
        self.seen = Seen()
        self._kafka, self._topic, self._key = config.kafka, name, endpoint_id.encode()
        own = {"group.id": "fanout-smoke-test", "enable.auto.commit": False}
        self._consumer = kafka_clients.consumer(config.kafka, own)
        self._consumer.assign([confluent_kafka.TopicPartition(*extent.place, extent.end) for extent in extents])

    def poll(self) -> None:
        """Read the records that have arrived, at most 1,000, and add the records about the endpoint to `seen`.

        Raise KafkaUnavailable if the login may not read the attempts topic. Ignore other errors, which may be transient.
        """
        for message in self._consumer.consume(1000, 0):
            error = message.error()
            if error is not None and error.code() == confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise topics.unavailable(self._kafka, confluent_kafka.KafkaException(error), f"to read topic {self._topic}")
            if error is None and message.key() == self._key:
                self.seen.add(message.value() or b"")

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()
