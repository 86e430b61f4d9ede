"""Write records in transactions of Kafka: aborted, committed and open ones."""

from confluent_kafka import Producer

from delivery.config import kafka_clients

TIMEOUT_S = 30


def open_producer(kafka, topic):
    """Return a producer that writes in transactions. `topic` names them, so each topic has its own."""
    producer = Producer(kafka_clients.for_librdkafka(kafka) | {"transactional.id": topic})
    producer.init_transactions(TIMEOUT_S)
    return producer


def begin(producer, topic, value):
    """Begin a transaction, and write a record of it to partition 0."""
    producer.begin_transaction()
    producer.produce(topic, value, partition=0)
    producer.flush()


def abort_and_commit(producer, topic, aborted, committed):
    """Write a record that is aborted, then one that is committed. Each is followed by an offset for its mark."""
    begin(producer, topic, aborted)
    producer.abort_transaction(TIMEOUT_S)
    begin(producer, topic, committed)
    producer.commit_transaction(TIMEOUT_S)
