"""A retry entry waits while its background attempt is in flight. A shard leases the entry only if no completion is reported."""

import msgspec

from delivery.model import NextAttempt
from delivery.registry_model import CustomerId, EndpointId
from delivery.stages.kafka import sink
from delivery.webhooks.policy import error_classes, retry_reasons
from delivery.webhooks.retries import endpoint_state, retry_messages
from delivery.webhooks.retries.endpoint_state import COMPLETED_KEPT_MS
from tests.support.retries import NOW, Shard, accepted, entry, failed_attempt, postponed

WAIT_MS = 32_000
NAME = b"a name of its own"


def under_way(name=NAME, **fields):
    return entry(again_at_ms=NOW + WAIT_MS, reason=retry_reasons.UNDER_WAY, background_attempt=name, **fields)


def settled(*names, entries=()):
    return retry_messages.encoded(retry_messages.Postponed(EndpointId("ep1"), CustomerId("c1"), list(entries), list(names)))


def test_an_entry_whose_background_attempt_completed_is_never_leased():
    shard = Shard()
    assert shard.step(postponed(under_way()), now_ms=NOW) == []
    assert shard.backlog.events == 1
    shard.step(settled(NAME), now_ms=NOW + 1500)
    assert shard.backlog.events == 0
    assert shard.step(now_ms=NOW + WAIT_MS + 2000) == []
    assert shard.is_empty()


def test_an_entry_does_not_expire_before_its_background_attempt_has_ended():
    """Regression: it became a dead letter, and the endpoint then accepted the attempt."""
    shard = Shard()
    shard.step(postponed(under_way(expires_ms=NOW + 1000)), now_ms=NOW)
    assert shard.step(now_ms=NOW + 1500) == []
    shard.step(settled(NAME), now_ms=NOW + 2000)
    assert shard.step(now_ms=NOW + WAIT_MS + 2000) == []
    assert shard.is_empty()


def test_an_entry_that_expired_in_the_background_is_given_up_after_its_wait():
    shard = Shard()
    shard.step(postponed(under_way(expires_ms=NOW + 1000)), now_ms=NOW)
    now_ms, [lease] = shard.wait()
    assert (now_ms, lease.given_up) == (NOW + WAIT_MS, retry_reasons.EXPIRED)


def test_an_entry_without_a_completion_is_leased_when_due():
    shard = Shard()
    shard.step(postponed(under_way()), now_ms=NOW)
    now_ms, [lease] = shard.wait()
    assert now_ms == NOW + WAIT_MS
    assert len(lease.entries) == 1
    shard.step(accepted(lease), now_ms=now_ms + 1)
    assert shard.is_empty()


def test_a_late_completion_does_not_end_an_entry_twice():
    shard = Shard()
    shard.step(postponed(under_way(), entry(again_at_ms=NOW + 10 * WAIT_MS)), now_ms=NOW)
    now_ms, [lease] = shard.wait()
    shard.step(settled(NAME), now_ms=now_ms + 1)
    assert shard.backlog.events == 2
    shard.step(accepted(lease), now_ms=now_ms + 2)
    assert shard.backlog.events == 1


def test_a_completion_counts_at_the_moment_the_entry_is_due():
    shard = Shard()
    shard.step(postponed(under_way()), now_ms=NOW)
    assert shard.step(settled(NAME), now_ms=NOW + 10 * WAIT_MS) == []
    assert shard.backlog.events == 0


def test_an_entry_that_arrives_after_its_completion_is_ignored():
    for together in (True, False):
        shard = Shard()
        if together:
            shard.step(settled(NAME), postponed(under_way()), now_ms=NOW)
        else:
            shard.step(settled(NAME), now_ms=NOW - 500)
            shard.step(postponed(under_way()), now_ms=NOW)
        assert shard.backlog.events == 0
        assert shard.is_empty()


def test_a_completion_outlasts_the_longest_wait_for_a_row():
    """Regression: the worker waited minutes for Kafka before it wrote the entry. Its completion was forgotten after one minute.

    The delivery was then sent again.
    """
    shard = Shard()
    shard.step(settled(NAME), now_ms=NOW - sink.DELIVERY_TIMEOUT_MS - 30_000)
    shard.step(now_ms=NOW - 1)
    assert shard.step(postponed(under_way()), now_ms=NOW) == []
    assert shard.backlog.events == 0
    assert shard.is_empty()


def test_a_completion_takes_few_bytes():
    state = endpoint_state.EndpointState()
    sizes = []
    for number in range(2):
        state.complete(number.to_bytes(16, "big"), NOW)
        sizes.append(len(msgspec.msgpack.encode(state)))
    assert sizes[1] - sizes[0] == 27


def test_a_completion_without_an_entry_is_forgotten():
    shard = Shard()
    shard.step(settled(NAME), now_ms=NOW)
    shard.step(postponed(entry(), endpoint="ep2"), now_ms=NOW + COMPLETED_KEPT_MS)
    assert shard.index.endpoints.keys() == {"c1/ep2"}


def test_two_entries_of_the_same_event_are_distinguished():
    shard = Shard()
    first = under_way()
    shard.step(postponed(first, msgspec.structs.replace(first, background_attempt=b"another")), now_ms=NOW)
    shard.step(settled(NAME), now_ms=NOW + 1)
    assert shard.backlog.events == 1
    assert [len(lease.entries) for lease in shard.wait()[1]] == [1]


def test_a_repeated_entry_with_a_background_attempt_counts_once():
    """Regression: an entry that was twice in the topic counted twice, and its completion ended one of both."""
    for together in (True, False):
        shard, repeated = Shard(), under_way()
        if together:
            shard.step(postponed(repeated, repeated), now_ms=NOW)
        else:
            shard.step(postponed(repeated), now_ms=NOW)
            shard.step(postponed(repeated), now_ms=NOW + 1)
        assert shard.backlog.events == 1
        shard.step(settled(NAME), now_ms=NOW + 1500)
        assert shard.step(now_ms=NOW + WAIT_MS + 2000) == []
        assert (shard.backlog.events, shard.backlog.due_ms) == (0, None)
        assert shard.is_empty()


def test_a_failed_background_attempt_arrives_as_a_new_entry():
    shard = Shard()
    shard.step(postponed(under_way()), now_ms=NOW)
    failed = entry(again_at_ms=NOW + 5000, attempts=1, history=(failed_attempt(),))
    shard.step(postponed(failed), settled(NAME), now_ms=NOW + 2000)
    assert shard.backlog.events == 1
    now_ms, [lease] = shard.wait()
    assert (now_ms, lease.entries) == (NOW + 5000, [failed])


def test_a_requeued_entry_has_no_background_attempt():
    returned = under_way().requeued(
        retry_messages.Requeue(0, NextAttempt(NOW, 1), error_classes.SERVER_ERROR, (failed_attempt(),))
    )
    assert returned.background_attempt is None


def test_an_entry_that_is_overdue_after_a_stop_is_leased_once():
    shard = Shard()
    [lease] = shard.step(postponed(under_way(since_ms=NOW)), now_ms=NOW + 2 * WAIT_MS)
    shard.step(settled(NAME), accepted(lease), now_ms=NOW + 2 * WAIT_MS + 1)
    assert shard.backlog.events == 0


def test_an_entry_with_a_background_attempt_exceeds_max_pending():
    shard = Shard(max_pending=1)
    assert shard.step(postponed(entry(again_at_ms=NOW + 5000), under_way()), now_ms=NOW) == []
    assert shard.backlog.events == 2
