"""The real-time lane starts with all of its offset receipts, or waits for Kafka."""

from types import SimpleNamespace

import confluent_kafka
import msgspec
import pytest
from confluent_kafka import KafkaError

from delivery import errors
from delivery.config import settings, worker_plans
from delivery.stages.kafka import completed_reader
from delivery.stages.realtime import start_offsets
from tests.support import records

ASKED = completed_reader.CompletedWork(client={}, topics=worker_plans.plan_of(settings.Settings()).topics, since_ms=0)


def message(value=None, error=None):
    return SimpleNamespace(value=lambda: value, error=lambda: error, timestamp=lambda: (0, 7))


def receipt(first, last):
    fields = {"lane": "direct", "topic": "t", "partition": 0, "first_offset": first, "last_offset": last}
    return message(msgspec.json.encode(records.receipt(**fields)))


FAILED = message(error=KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
STOPPED = errors.KafkaUnavailable("not read to its end")


@pytest.fixture
def receipts(monkeypatch):
    """Read receipts from an attempts topic that gives `tries`: for each read its messages, and an error that ends the read."""
    monkeypatch.setattr(start_offsets, "RETRY_S", 0.0)
    monkeypatch.setattr(confluent_kafka, "Consumer", lambda _: SimpleNamespace(close=lambda: None))

    def read(*tries):
        left = list(tries)

        def messages(*_, **__):
            for step in left.pop(0):
                if isinstance(step, Exception):
                    raise step
                yield step

        monkeypatch.setattr(completed_reader, "messages", messages)
        return start_offsets._receipts_patiently(ASKED, lambda _: True)

    return read


@pytest.mark.parametrize(
    "tries",
    [[[receipt(0, 4), FAILED]] * start_offsets.TRIES, [[receipt(0, 4), STOPPED]]],
    ids=["a partition fails", "kafka stops"],
)
def test_a_part_of_the_receipts_starts_no_lane(receipts, tries):
    """Regression: the lane started with the receipts that it had read, and repeated the deliveries of all others."""
    with pytest.raises(errors.KafkaUnavailable, match="The lane does not start without them"):
        receipts(*tries)


def test_receipts_that_could_not_be_read_once_are_read_again(receipts):
    assert receipts([receipt(0, 4), FAILED], [receipt(0, 4), receipt(5, 9)]) == ({("t", 0): [(0, 4), (5, 9)]}, 7)
