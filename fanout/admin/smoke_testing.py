"""`fanout smoke-test`: deliver one signed event through the job that runs, and clean up.

Runs in the command. Registers an endpoint and a subscription, publishes an event to Kafka, and waits for two things:

1. the delivery log (the attempts topic) has an attempt that the endpoint answered with 2xx;
2. where the endpoint is the command's own receiver, a request with that event came there and its signature is right.

The tenant, the customer and the topic of the test stay: a deleted topic would stop the lanes, and a deleted tenant would turn
an event that another lane has not read yet into a rejected record. One test at a time runs on a registry: the clean-up deletes
every endpoint of the test's customer.
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import hmac
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import confluent_kafka
import orjson

from delivery import errors
from delivery.config import kafka_clients, settings, topic_pattern, worker_plans
from delivery.model import Record
from delivery.webhooks.events import parsing
from fanout.admin import registry_commands
from fanout.kafka import publishing, topic_scanner
from fanout.local import receiver
from subscriptions_db.manifest import manifest

NAME = "fanout-smoke-test"
"""The id of the tenant and of the customer, the event type, and the topic's name behind `source.topic_prefix`."""
PUBLISH_EVERY_S = 5
"""The event is published again after this time: a job that was planning a micro-batch while the endpoint was registered reads
the first one by the registry before."""
POLL_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How the test ended."""

    url: str
    is_signature_checked: bool
    """False: the endpoint was not the command's own, so only its answer is known."""
    published: int
    """Copies of the event. More than one: the first was not delivered within PUBLISH_EVERY_S."""
    delivered_after_s: float | None
    """From the first copy to the proof; None: there was none in time."""
    seen: tuple[str, ...]
    """What the delivery log says of the endpoint, in order: `200`, `timeout`, `postponed: slow`."""

    def document(self) -> dict[str, Any]:
        """Return the result for machines."""
        return {"delivered": self.delivered_after_s is not None, **asdict(self)}

    def text(self) -> str:
        """Return the result as one line for a person."""
        if self.delivered_after_s is not None:
            proof = (
                "its signature is right" if self.is_signature_checked else "answered with 2xx; the signature was not checked"
            )
            return f"delivered to {self.url} after {self.delivered_after_s:.1f} s: {proof}"
        why = f"the delivery log says: {', '.join(self.seen)}" if self.seen else (
            "the delivery log says nothing of it: is the job ready, and does it run the direct lane? `fanout doctor` looks"
        )  # fmt: skip
        return f"not delivered to {self.url}, {self.published} copies of the event published: {why}"


def run(
    config: settings.Settings,
    *,
    host: str,
    port: int,
    endpoint_url: str | None,
    timeout_s: float,
    sleep: Callable[[float], None],
) -> Result:
    """Deliver an event to `endpoint_url`, or to a receiver of this process at `host` and `port`; return what was seen."""
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


def event(source: settings.Source, event_id: str) -> bytes:
    """Return the event, with its attributes where the settings look for them."""
    document: dict[str, Any] = {"note": "an event of `fanout smoke-test`"}
    now = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
    attributes = {
        source.id_field: event_id,
        source.type_field: NAME,
        source.tenant_field: NAME,
        source.time_field: now,
    }
    for path, value in attributes.items():
        *parents, last = path.split(".")
        part = document
        for name in parents:
            part = part.setdefault(name, {})
        part[last] = value
    return orjson.dumps(document)


def require_readable(config: settings.Settings, message: publishing.Message) -> None:
    """Raise SettingsError unless the job reads the topic and takes the event."""
    if not topic_pattern.matches(config.source.topic_pattern, message.topic):
        raise errors.SettingsError(
            f"source.topic_pattern does not match {message.topic}, so that the job would not read the event"
        )
    record = Record(topic=message.topic, partition=0, offset=0, appended_at_ms=0, value=message.value)
    try:
        parsing.parse(record, worker_plans.layout_of(config))
    except errors.EventRejected as exc:
        raise errors.SettingsError(f"the job would reject the event ({exc.reason}: {exc.detail})") from None


def require_allowed(config: settings.Settings, url: str) -> None:
    """Raise SettingsError where the address guard of the job keeps requests from `url`."""
    try:
        worker_plans.guard_of(config.delivery).check_url(url)
    except errors.TargetRefused as exc:
        raise errors.SettingsError(
            f"the job's address guard refuses {url} ({exc}): nothing would be delivered there. Name an endpoint that the guard "
            "permits and that answers 2xx, --endpoint-url https://…; or, for development, open delivery.allow_http, "
            "delivery.allow_networks and delivery.allow_ports"
        ) from None


@contextlib.contextmanager
def registered(config: settings.Settings, endpoint_id: str, url: str) -> Iterator[str]:
    """Register the test's tenant, customer, endpoint and subscription; yield the signing secret; delete the last two."""
    kept: dict[str, Any] = {"tenants": [{"id": NAME}], "customers": [{"id": NAME, "name": "fanout smoke-test"}]}
    endpoint = {"id": endpoint_id, "customer": NAME, "url": url}
    subscription = {"id": endpoint_id, "endpoint": endpoint_id, "event_type": NAME, "tenants": [NAME]}
    guard = worker_plans.guard_of(config.delivery)
    wanted = manifest.check(kept | {"endpoints": [endpoint], "subscriptions": [subscription]}, guard)
    try:
        yield registry_commands.apply_manifest(config, wanted, prune=True).new_secrets[endpoint_id]
    finally:
        registry_commands.apply_manifest(config, manifest.check(kept, guard), prune=True)


@dataclass(slots=True)
class Arrivals:
    """What has come to the command's own receiver."""

    secret: str = ""
    has_verified: bool = False

    def receiving(self, host: str, port: int) -> receiver.Receiver:
        """Return the receiver, not open yet."""
        return receiver.Receiver(
            secrets_of=lambda _: [self.secret], on_received=self._take, verify=is_signed, host=host, port=port
        )

    def _take(self, received: receiver.Received) -> None:
        self.has_verified |= received.is_verified


def is_signed(body: bytes, headers: dict[str, str], secrets: list[str]) -> bool:
    """Tell whether one of the secrets has signed, as Standard Webhooks 1.0 says it.

    Written without the code that signs. The library of customers, which `fanout listen` uses, is not in the image.
    """
    signed = f"{headers.get('webhook-id')}.{headers.get('webhook-timestamp')}.".encode() + body
    given = headers.get("webhook-signature", "").split()
    for secret in secrets:
        code = hmac.digest(base64.b64decode(secret.removeprefix("whsec_")), signed, "sha256")
        if any(hmac.compare_digest(f"v1,{base64.b64encode(code).decode()}", one) for one in given):
            return True
    return False


@dataclass(slots=True)
class Seen:
    """What the delivery log says of the test's endpoint."""

    words: list[str] = field(default_factory=list)
    has_accepted: bool = False

    def take(self, row: dict[str, Any]) -> None:
        """Take a record of the attempts topic about this endpoint."""
        for entry in row.get("entries", ()):
            if entry["kind"] != "attempt":
                self.words.append(f"{entry['kind']}: {entry['reason']}")
                continue
            self.words.append(str(entry["error_class"] or entry["status"]))
            self.has_accepted |= entry["error_class"] is None


class DeliveryLog:
    """Follow the attempts topic from now on, for one endpoint."""

    def __init__(self, config: settings.Settings, endpoint_id: str) -> None:
        name = config.delivery.attempts_topic
        extents = topic_scanner.Scanner(config.kafka).extents([name])
        if not extents:
            raise errors.KafkaUnavailable(f"there is no topic {name}: the job has never run on this Kafka")
        self.seen = Seen()
        self._key = endpoint_id.encode()
        own = {"group.id": "fanout-smoke-test", "enable.auto.commit": False}
        self._consumer = confluent_kafka.Consumer(own | kafka_clients.for_librdkafka(config.kafka))
        self._consumer.assign([confluent_kafka.TopicPartition(*one.place, one.end) for one in extents])

    def poll(self) -> None:
        """Take what has come."""
        for message in self._consumer.consume(1000, 0):
            if message.error() is None and message.key() == self._key:
                self.seen.take(orjson.loads(message.value() or b"{}"))

    def close(self) -> None:
        """Leave Kafka."""
        self._consumer.close()
