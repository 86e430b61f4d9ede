"""Events with the id of an earlier event and another payload are counted, and the memory for them is bounded."""

import logging

import pytest

from delivery.webhooks.events import parsing
from delivery.webhooks.routing import seen_ids
from tests.support import builders

LONG = b"a" * 2_500 + b"b" + b"a" * 2_500
MIDDLE = b"a" * 2_500 + b"c" + b"a" * 2_500
"""A payload that equals LONG in its length, its beginning and its end."""


def event(event_id="e1", data=b"1", source="/shop", offset=7):
    return builders.event(event_id=event_id, data=data, source=source, record=builders.record(topic="orders", offset=offset))


@pytest.mark.parametrize(
    ("events", "reused"),
    [
        pytest.param([event(), event()], 0, id="a repeat"),
        pytest.param([event(), event(data=b"2")], 1, id="another payload"),
        pytest.param([event(), event(data=b"2", source="/other")], 0, id="another source"),
        pytest.param([event(), event("e2", b"2")], 0, id="another id"),
        pytest.param([event(), event(data=b"2"), event(), event(data=b"2")], 2, id="a micro-batch that runs again"),
        pytest.param([event(), event(data=b"2"), event(data=b"3")], 2, id="three payloads"),
        pytest.param([event(data=b"a" * 5_000), event(data=b"a" * 5_001)], 1, id="long payloads of two lengths"),
        pytest.param([event(data=b"a" * 5_000), event(data=b"a" * 4_999 + b"b")], 1, id="long payloads with two ends"),
        pytest.param([event(data=LONG), event(data=MIDDLE)], 1, id="long payloads that differ in the middle only"),
        pytest.param([event(data=LONG), event(data=bytes(bytearray(LONG)))], 0, id="a repeat of a long payload"),
    ],
)
def test_an_id_with_another_payload_is_counted(events, reused):
    seen = seen_ids.SeenIds()
    for published in events:
        seen.add(published)
    assert (seen.drain(), seen.drain()) == (reused, 0)


def test_a_tenant_reuses_an_id_if_only_the_middle_of_a_payload_differs():
    """Regression: of a payload above 1 KiB, only the length and both ends were compared."""
    seen = seen_ids.SeenIds()
    assert [seen.is_reused_by_its_tenant(event(data=data)) for data in (LONG, MIDDLE, LONG)] == [False, True, False]


def test_the_memory_is_bounded_and_keeps_the_last_ids():
    seen = seen_ids.SeenIds(max_ids=10)
    for number in range(1_000):
        seen.add(event(f"e{number}"))
        assert len(seen._all) <= 20
    for number in range(990, 1_000):
        seen.add(event(f"e{number}", b"2"))
    seen.add(event("e5", b"2"))
    assert seen.drain() == 10


def test_the_log_names_the_place_of_the_first_reused_id_only(caplog):
    seen = seen_ids.SeenIds()
    with caplog.at_level(logging.WARNING):
        for offset, data in ((7, b"1"), (8, b"2"), (9, b"3")):
            seen.add(event(data=data, offset=offset))
    [line] = caplog.records
    assert (line.topic, line.partition, line.offset) == ("orders", 0, 8)
    assert "e1" not in line.getMessage()  # an id is the producer's text, and may hold personal data


@pytest.mark.parametrize(
    ("layout", "delivered"),
    [(parsing.Layout(), "with the same webhook-id"), (parsing.Layout(tells_ids_apart=True), "with another webhook-id")],
)
def test_the_log_says_which_webhook_id_the_event_has(caplog, layout, delivered):
    """Regression: where the webhook-ids differed, the log said that receivers ignore the event."""
    seen = seen_ids.SeenIds()
    for amount in (1, 2):
        record = builders.record(value=b'{"id": "e1", "tenant_id": "t1", "amount": %d}' % amount)
        seen.add(parsing.parse(record, layout))
    assert f"it is delivered {delivered}" in caplog.text
