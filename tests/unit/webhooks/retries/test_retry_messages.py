"""A retry message is read from bytes as it was written. A retry entry keeps its attempt history."""

import msgspec
import pytest

from delivery.model import LeaveReason, NextAttempt, Outcome, OutcomeKind
from delivery.registry_model import CustomerId, EndpointId
from delivery.webhooks.batching import segment
from delivery.webhooks.policy import error_classes, response_headers, retry_reasons
from delivery.webhooks.retries import retry_messages
from delivery.webhooks.sending.batch_payload import BatchDelivery
from tests.support import builders
from tests.support.retries import DAY_MS, NOW, entry, failed_attempt, requeue

AGAIN = NextAttempt(NOW + 5000, 1)


def postponed(delivery, *attempts, reason=error_classes.SERVER_ERROR):
    return Outcome(delivery, OutcomeKind.POSTPONED, attempts, reason, AGAIN)


def batch(*through):
    events = [segment.unpacked(segment.item(builders.event(), NOW).packed) for _ in through]
    return BatchDelivery(builders.endpoint(), "w1", b"", b"", b"", events, list(through), LeaveReason.COUNT)


def test_a_postponed_delivery_becomes_an_entry_with_its_event_and_age():
    delivery = builders.delivery(subscription=builders.subscription("s7"))
    made = retry_messages.delivery_entry(postponed(delivery, failed_attempt(1), failed_attempt(2)), now_ms=NOW)
    assert segment.unpacked(made.packed[0]).event().event_id == delivery.event.event_id
    assert (made.subscriptions, made.subscription_places, made.left_by) == (["s7"], [], None)
    assert (made.again_at_ms, made.since_ms, made.expires_ms) == (NOW + 5000, NOW, NOW + 3 * DAY_MS)
    assert (made.retries, made.attempts, made.reason, len(made.history)) == (1, 2, error_classes.SERVER_ERROR, 2)


@pytest.mark.parametrize(
    ("through", "subscriptions", "places"),
    [(["s1", "s1"], ["s1"], []), (["s2", "s1", "s2"], ["s2", "s1"], [0, 1, 0])],
)
def test_a_postponed_batch_becomes_one_entry_with_its_subscriptions(through, subscriptions, places):
    made = retry_messages.batch_entry(postponed(batch(*through)), [b"12345"] * len(through), now_ms=NOW)
    assert (made.subscriptions, made.subscription_places, made.left_by) == (subscriptions, places, LeaveReason.COUNT)
    assert made.size == 5 * len(through)


def test_a_requeued_entry_keeps_its_last_attempts():
    made = entry(attempts=11, history=tuple(failed_attempt(n) for n in range(2, 12)), retries=3)
    returned = made.requeued(requeue(0, NOW + 9, failed_attempt(12), failed_attempt(13), retries=4, reason="timeout"))
    assert (returned.again_at_ms, returned.retries, returned.reason, returned.attempts) == (NOW + 9, 4, "timeout", 13)
    assert [attempt.number for attempt in returned.history] == list(range(4, 14))
    assert (returned.packed, returned.expires_ms) == (made.packed, made.expires_ms)


def test_an_entry_requeued_unattempted_has_no_new_attempt():
    made = entry(attempts=2, history=(failed_attempt(2),))
    returned = made.requeued(requeue(0, NOW, retries=0))
    assert (returned.attempts, returned.history) == (2, made.history)


MESSAGES = [
    retry_messages.Postponed(
        EndpointId("ep1"), CustomerId("c1"), [entry(2, order_key="k", history=(failed_attempt(response=b"\xff"),))]
    ),
    retry_messages.Report(EndpointId("ep1"), CustomerId("c1"), None, 7, 1, 2, None, 1.5, [requeue(1, NOW, failed_attempt())]),
    retry_messages.Report(EndpointId("ep1"), CustomerId("c1"), "", 7, 0, 0, retry_reasons.ENDPOINT_PAUSED, None, []),
]


@pytest.mark.parametrize("message", MESSAGES)
def test_a_record_of_the_topic_is_read_as_it_was_written(message):
    assert retry_messages.message(retry_messages.encoded(message)) == message


def test_headers_and_bodies_of_responses_are_not_in_the_bytes_of_the_lane():
    """An older version refuses an attempt with more elements."""
    plain = failed_attempt()
    with_headers = response_headers.attach(plain, {"server": "nginx"}, "nginx is away")
    for attempts in ((plain,), (with_headers,)):
        outcome = Outcome(builders.delivery(), OutcomeKind.POSTPONED, attempts, "server_error", AGAIN)
        made = retry_messages.Postponed(
            EndpointId("ep1"), CustomerId("c1"), [retry_messages.delivery_entry(outcome, now_ms=NOW)]
        )
        report = retry_messages.Report(
            EndpointId("ep1"), CustomerId("c1"), None, 7, 1, 2, None, 1.5, [requeue(1, NOW, *attempts)]
        )
        for message in (made, report):
            written = retry_messages.encoded(message)
            assert b"nginx" not in written
            assert retry_messages.message(written) == message
    assert msgspec.msgpack.encode(with_headers) == msgspec.msgpack.encode(plain)


def test_a_lease_is_read_as_it_was_written():
    lease = retry_messages.Lease(EndpointId("ep1"), CustomerId("c1"), "k", 3, None, [entry(), entry(left_by=LeaveReason.TIME)])
    assert retry_messages.lease(retry_messages.encoded(lease)) == lease


def test_an_older_entry_without_the_newest_fields_can_be_read():
    old = msgspec.msgpack.encode([[b"e"], ["s1"], [], None, 1, 2, 3, "timeout"])
    assert msgspec.msgpack.decode(old, type=retry_messages.RetryEntry).order_key is None


def test_two_versions_read_each_others_packed_events():
    """The earlier version had no further attributes. The earlier version reads an event with attributes, and ignores these."""
    event = builders.event()
    of_then = msgspec.msgpack.encode((*event[:7], *event.record[:4], event.record.headers))
    assert segment.unpacked(of_then).attributes == ()
    assert segment.item(event, NOW).packed == of_then
    of_now = segment.item(event._replace(attributes=(("subject", "x"),)), NOW).packed
    assert msgspec.msgpack.decode(of_now)[:12] == msgspec.msgpack.decode(of_then)
