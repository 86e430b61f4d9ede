"""Read Kafka partitions from given offsets to their ends.

Runs on the driver, in executors and in the commands. Must not import the settings: workers import this module, and pydantic
would take 11 MB of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import confluent_kafka


def batches(
    consumer: confluent_kafka.Consumer,
    starts: Sequence[confluent_kafka.TopicPartition],
    *,
    ends: Mapping[tuple[str, int], int] | None = None,
    max_records: int,
    wait_s: float,
) -> Iterator[list[confluent_kafka.Message]]:
    """Yield the messages of each poll, until every partition of `starts` is read to its end.

    `starts` gives the first offset of each partition. `ends` gives, for each of these partitions, the offset after its last
    wanted record; None: no limit. Reading of a partition ends at this offset, or where the consumer finds no further record,
    whichever comes first. The consumer needs the option `enable.partition.eof`. A poll returns at most `max_records` messages.
    A poll without messages within `wait_s` seconds yields an empty list, so that the caller can check its deadline. Messages
    with an error are yielded as well, except the error for the end of a partition. The caller decides what an error means.
    """
    from confluent_kafka import KafkaError  # noqa: PLC0415  # most workers never need it

    unread = {(start.topic, start.partition) for start in starts}
    consumer.assign(list(starts))
    while unread:
        messages = []
        for message in _poll(consumer, max_records, wait_s):
            place, error = (str(message.topic()), message.partition() or 0), message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  # its public name
                    unread.discard(place)
                else:
                    messages.append(message)
            elif place in unread:
                after = (message.offset() or 0) + 1
                if ends is None or after <= ends[place]:
                    messages.append(message)
                if ends is not None and after >= ends[place]:
                    unread.discard(place)
        yield messages
    consumer.unassign()


def _poll(consumer: confluent_kafka.Consumer, max_records: int, wait_s: float) -> list[confluent_kafka.Message]:
    """Wait up to `wait_s` seconds for a message. Return it with all further messages that have arrived by then.

    A single call of `consume` would wait for `wait_s`, or for all `max_records`.
    """
    messages = consumer.consume(1, wait_s)
    return messages + consumer.consume(max_records - 1, 0) if messages else messages
