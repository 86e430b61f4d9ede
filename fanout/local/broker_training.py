"""Start the embedded Kafka broker and use it, so that its JVM archives the classes that it loads.

Runs as its own process, started by fanout/jvm/class_archive.py. Its working folder is a scratch folder.
"""

from __future__ import annotations

import sys
from pathlib import Path

from confluent_kafka.cimpl import NewTopic

from delivery.config import kafka_clients, settings
from fanout.jvm import jars
from fanout.local import kafka_server

TOPIC = "archived"
ANSWER_TIMEOUT_S = 60
STOP_TIMEOUT_S = 120
"""Seconds that the broker may take to stop and to write the archive."""


def main(archive: Path) -> None:
    """Create a topic, write a record and read it in a consumer group. The broker's JVM writes `archive` when it exits."""
    broker = kafka_server.EmbeddedKafka(Path.cwd() / "kafka", libraries=jars.ensure(), archive_to=archive)
    broker.start()
    try:
        _use(broker.bootstrap_servers)
    finally:
        broker.stop(STOP_TIMEOUT_S)


def _use(servers: str) -> None:
    client = settings.KafkaSettings(bootstrap_servers=servers)
    admin = kafka_clients.admin(client)
    [created] = admin.create_topics([NewTopic(TOPIC, 1, 1)]).values()
    created.result(ANSWER_TIMEOUT_S)
    producer = kafka_clients.producer(client, {})
    producer.produce(TOPIC, b"record")
    producer.flush(ANSWER_TIMEOUT_S)
    consumer = kafka_clients.consumer(client, {"group.id": TOPIC, "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    consumer.poll(ANSWER_TIMEOUT_S)
    consumer.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
