"""A world for tests of replays: topics on a real Kafka, a registry in a real Postgres, and a replayer."""

import datetime as dt
import uuid

import orjson

from delivery.config import kafka_clients, settings
from delivery.stages.kafka import topics
from delivery.webhooks.batching import segment
from delivery.webhooks.retries import retry_records
from delivery.webhooks.sending import payload
from fanout.archiver import replay_step
from fanout.kafka import publishing, topic_scanner
from fanout.redrive import replay_plan
from subscriptions_db.replays import requests
from subscriptions_db.replays.requests import ReplayOne, ReplayRange

LONG_AGO = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
DOCUMENT = {
    "tenants": [{"id": "t1"}],
    "customers": [{"id": "c1"}],
    "endpoints": [{"id": name, "customer": "c1", "url": f"https://hooks.example.com/{name}"} for name in ("ep1", "ep2")],
    "subscriptions": [
        {"id": f"s{number}", "endpoint": f"ep{number}", "event_type": "order", "everything": True} for number in (1, 2)
    ],
}
AVRO = {"type": "record", "name": "Order", "fields": [{"name": name, "type": "string"} for name in ("id", "tenant_id")]}


class World:
    """Topics, a registry and a replayer for one test."""

    def __init__(self, kafka, connection):
        name = uuid.uuid4().hex[:8]
        self.connection = connection
        self.topic = f"{name}.order"
        self.document = {
            "kafka": {"bootstrap_servers": kafka.bootstrap_servers},
            "source": {"topic_pattern": f"{name}\\..+", "topic_prefix": f"{name}."},
            "delivery": {
                "attempts_topic": f"attempts-{name}", "dead_letter_topic": f"dead-{name}",
                "rejected_topic": f"rejected-{name}", "retries_topic": f"retries-{name}", "result_partitions": 1,
            },
        }  # fmt: skip
        self.config = settings.Settings.model_validate(self.document)
        self.max_records, self.max_bytes = replay_step.MAX_RECORDS, replay_plan.MAX_BYTES
        topics.ensure_all(self.config)
        topics.ensure(self.config.kafka, [self.topic], 1)

    def publish(self, *numbers):
        self.publish_raw(*(orjson.dumps({"id": f"e{number}", "tenant_id": "t1", "amount": number}) for number in numbers))

    def publish_raw(self, *values, topic=""):
        publisher = publishing.Publisher(self.config.kafka)
        for value in values:
            publisher.publish(publishing.Message(topic=topic or self.topic, value=value, key=b"k"))
        publisher.flush()

    def publish_at(self, *moments, topic=""):
        """Publish the events e0, e1, …, which have these times in Kafka."""
        producer = kafka_clients.producer(self.config.kafka, {})
        for number, moment in enumerate(moments):
            value = orjson.dumps({"id": f"e{number}", "tenant_id": "t1"})
            producer.produce(topic or self.topic, value, timestamp=round(moment.timestamp() * 1000))
            producer.flush()

    def ask(self, endpoint="ep1", **fields):
        wanted = {"since": LONG_AGO, "until": dt.datetime.now(dt.UTC) + dt.timedelta(minutes=1)} | fields
        return requests.ask(self.connection, "c1", endpoint, ReplayRange(**wanted)).replay_id

    def ask_again(self, endpoint, event, subscription_id, topic, offset=0):
        """Request one delivery again."""
        delivery = ReplayOne(
            webhook_id=payload.webhook_id(event, subscription_id),
            subscription_id=subscription_id, topic=topic, partition=0, offset=offset,
        )  # fmt: skip
        return requests.ask(self.connection, "c1", endpoint, delivery).replay_id

    def replayer(self, **archive):
        config = settings.Settings.model_validate(self.document | {"archive": archive})
        return replay_step.Replayer(config, max_records=self.max_records, max_bytes=self.max_bytes)

    def carry_out(self, **archive):
        replayer = self.replayer(**archive)
        while replayer.step(self.connection, once=True):
            pass
        replayer.close()

    def replay(self, replay_id):
        return requests.get(self.connection, "c1", replay_id)

    def handed_over(self):
        """Return event id, endpoint and replay id of each enqueued retry entry."""
        return [(message.endpoint_id, event.event_id, entry.replay) for message, entry, event in self.entries()]

    def entries(self):
        """Return each enqueued retry entry with its message and its event."""
        scanner, found = topic_scanner.Scanner(self.config.kafka), []
        scanner.read(scanner.extents([self.config.delivery.retries_topic]), "retries", found.append)
        scanner.close()
        return [
            (message, entry, segment.unpacked(entry.packed[0]))
            for message in retry_records.messages(*(record.value() for record in found))
            for entry in message.entries
        ]
