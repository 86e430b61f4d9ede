"""A shard of the batch lane sends batches by count, by bytes and by time."""

from delivery.model import LeaveReason
from delivery.webhooks.batching import batcher, segment
from delivery.webhooks.batching.batcher import BatchingBounds
from delivery.webhooks.state import compaction
from delivery.webhooks.state.compaction import MergeBounds
from tests.support import builders
from tests.support.batches import events, ids, pending_batch
from tests.support.shards import Shard

NOW = builders.record().appended_at_ms


def test_a_full_batch_is_sent_and_the_rest_stays():
    shard, of = Shard(), events(5)
    assert shard.step([pending_batch(*of[:2], max_events=3)], now_ms=NOW) == []
    [batch] = shard.step([pending_batch(*of[2:], max_events=3)], now_ms=NOW)
    assert (batch.reason, ids(batch)) == (LeaveReason.COUNT, [event.event_id for event in of[:3]])
    assert shard.index.totals()[0] == 2


def test_a_batch_is_sent_in_time_without_new_events():
    shard, of = Shard(), events(2)
    assert shard.step([pending_batch(*of)], now_ms=NOW) == []
    assert shard.step([], now_ms=NOW + 999) == []
    [batch] = shard.step([], now_ms=NOW + 1000)
    assert (batch.reason, len(batch.packed)) == (LeaveReason.TIME, 2)
    assert shard.is_empty()


def test_a_batch_due_within_the_look_ahead_is_sent_now():
    shard = Shard(look_ahead_ms=500)
    assert shard.step([pending_batch(*events(1))], now_ms=NOW + 499) == []
    assert len(shard.step([], now_ms=NOW + 500)) == 1


def test_a_later_event_does_not_delay_the_batch():
    shard = Shard()
    shard.step([pending_batch(*events(1))], now_ms=NOW)
    late = builders.event(record=builders.record(appended_at_ms=NOW + 900))
    shard.step([pending_batch(late)], now_ms=NOW + 900)
    assert [len(batch.packed) for batch in shard.step([], now_ms=NOW + 1000)] == [2]


def test_a_batch_is_sent_before_it_exceeds_its_bytes():
    shard, of = Shard(), events(3, data=b'"' + b"x" * 400 + b'"')
    size = segment.item(of[0], NOW).size
    assert shard.step([pending_batch(*of[:2], max_bytes=3 * size - 1)], now_ms=NOW) == []
    [batch] = shard.step([pending_batch(of[2], max_bytes=3 * size - 1)], now_ms=NOW)
    assert (batch.reason, len(batch.packed)) == (LeaveReason.BYTES, 2)


def test_an_event_larger_than_the_bound_is_sent_alone():
    shard, small, large = Shard(), builders.event(), builders.event(data=b'"' + b"x" * 5000 + b'"')
    batches = shard.step([pending_batch(small, large, small, max_bytes=1000)], now_ms=NOW)
    assert [ids(batch) for batch in batches] == [[small.event_id], [large.event_id]]
    assert shard.index.totals()[0] == 1


def test_the_bounds_of_the_newest_event_apply_to_all():
    shard = Shard()
    shard.step([pending_batch(*events(6), max_wait_ms=60_000)], now_ms=NOW)
    batches = shard.step([pending_batch(*events(1), max_events=3, max_wait_ms=60_000)], now_ms=NOW)
    assert [len(batch.packed) for batch in batches] == [3, 3]
    shard.step([pending_batch(*events(1), max_wait_ms=5000)], now_ms=NOW)
    assert [len(batch.packed) for batch in shard.step([], now_ms=NOW + 5000)] == [2]


def test_an_immediate_flush_sends_stored_events_too():
    shard = Shard()
    shard.step([pending_batch(*events(2), max_wait_ms=60_000)], now_ms=NOW)
    [batch] = shard.step([pending_batch(*events(1), mark=segment.Mark.IMMEDIATE)], now_ms=NOW)
    assert (batch.reason, len(batch.packed), shard.is_empty()) == (LeaveReason.TIME, 3, True)


def test_an_immediate_flush_of_new_events_writes_no_state():
    shard = Shard()
    passing = [pending_batch(*events(2), endpoint=name, mark=segment.Mark.IMMEDIATE) for name in ("ep1", "ep3")]
    assert [batch.endpoint_id for batch in shard.step(passing, now_ms=NOW)] == ["ep1", "ep3"]
    assert (shard.last.changed, shard.is_empty()) == (False, True)
    shard.step([pending_batch(*events(1), endpoint="ep2")], now_ms=NOW)
    assert shard.last.changed
    assert [batch.endpoint_id for batch in shard.step(passing, now_ms=NOW + 1000)] == ["ep2", "ep1", "ep3"]
    assert shard.last.changed


def test_a_batch_that_arrives_full_leaves_stored_events_alone():
    shard = Shard()
    shard.step([pending_batch(*events(2), max_events=3)], now_ms=NOW)
    [batch] = shard.step([pending_batch(*events(3), max_events=3, mark=segment.Mark.FULL)], now_ms=NOW)
    assert (batch.reason, len(batch.packed), shard.index.totals()[0]) == (LeaveReason.COUNT, 3, 2)


def test_customers_of_one_endpoint_id_share_no_batch():
    shard = Shard()
    shard.step([pending_batch(*events(1))], now_ms=NOW)
    shard.step([pending_batch(*events(1), customer="c2")], now_ms=NOW)
    assert [batch.customer_id for batch in shard.step([], now_ms=NOW + 1000)] == ["c1", "c2"]


def test_an_event_from_a_fast_clock_waits_no_longer():
    ahead = builders.event(record=builders.record(appended_at_ms=NOW + 10**9))
    assert segment.item(ahead, NOW).arrived_at_ms == NOW


def test_a_batch_does_not_wait_for_the_step_of_a_clock_set_back():
    """Regression: events that had arrived by a fast clock waited an hour for 1 s when it was set back by an hour."""
    shard, ahead = Shard(), builders.record(appended_at_ms=NOW + 3_600_000)
    shard.step([pending_batch(*events(2, record=ahead))], now_ms=NOW + 3_600_000)
    assert shard.step([], now_ms=NOW) == []
    assert (shard.last.changed, batcher.backlog_of(shard.last).due_ms) == (True, NOW + 1000)
    shard.step([pending_batch(*events(1, record=ahead), endpoint="ep2")], now_ms=NOW)
    assert [batch.endpoint_id for batch in shard.step([], now_ms=NOW + 1000)] == ["ep1", "ep2"]
    assert shard.is_empty()


def test_a_decision_with_nothing_to_do_changes_nothing():
    shard = Shard()
    shard.step([pending_batch(*events(1))], now_ms=NOW)
    before = batcher.encoded(shard.index)
    assert shard.step([], now_ms=NOW + 10) == []
    assert (batcher.encoded(shard.index), shard.last.changed) == (before, False)


def test_a_long_wait_rewrites_little_and_keeps_few_segments():
    shard, of = Shard(), events(400)
    for event in of:
        shard.step([pending_batch(event, max_events=1000, max_wait_ms=10**9)], now_ms=NOW)
    assert len(shard.segments) < 20
    assert shard.events_written < 400 * 7  # 4^5 > 400: each is merged five times, and written first
    [batch] = shard.step([], now_ms=NOW + 10**9)
    assert ids(batch) == [event.event_id for event in of]


def test_sent_events_in_an_old_segment_are_not_sent_again():
    shard = Shard(bounds=BatchingBounds(merges=MergeBounds(min_merged_size=1)))
    back = pending_batch(*events(1), endpoint="hasty")
    patient = pending_batch(*events(9), endpoint="patient", max_wait_ms=10**9)
    [both] = [written for written, _ in segment.encoded([patient, pending_batch(*events(5), endpoint="hasty")])]
    shard.decide([both], now_ms=NOW)
    shard.step([], now_ms=NOW + 1000)  # the hasty one leaves; its events stay beside the patient one's
    for number in range(compaction.BOUNDS.max_runs):
        shard.step(
            [pending_batch(*events(1), endpoint=f"other-{number}", max_wait_ms=10**9)] + [back] * (number == 0), now_ms=NOW
        )
    assert len(shard.index.segments) < compaction.BOUNDS.max_runs
    [batch] = shard.step([], now_ms=NOW + 1000)
    assert ids(batch) == [segment.unpacked(back.items[0].packed).event_id]


def test_sent_events_leave_the_segments_that_they_shared():
    shard = Shard()
    for turn in range(50):
        patient = pending_batch(*events(1), endpoint="patient", max_wait_ms=10**9)
        hasty = pending_batch(*events(100, data=b'"' + b"x" * 1000 + b'"'), endpoint="hasty")
        shard.step([patient, hasty], now_ms=NOW)
        shard.step([], now_ms=NOW + 1000)
        assert turn < 10 or shard.bytes_kept() < 400_000


def test_a_backlog_after_an_outage_is_sent_in_bounded_parts():
    shard, number = Shard(), 12
    for turn in range(number):
        [event] = events(1, record=builders.record(appended_at_ms=NOW + number - turn), data=b'"' + b"x" * 1000 + b'"')
        shard.step([pending_batch(event, endpoint=f"ep{turn:02}")], now_ms=NOW + number)
    shard.bounds = BatchingBounds(max_sent_bytes=shard.index.totals()[1] // 4)
    left = []
    while not shard.is_empty():
        left.append([batch.endpoint_id for batch in shard.step([], now_ms=NOW + 10**6)])
        assert shard.is_empty() or batcher.backlog_of(shard.last).due_ms < NOW + 10**6
    assert left == [["ep09", "ep10", "ep11"], ["ep06", "ep07", "ep08"], ["ep03", "ep04", "ep05"], ["ep00", "ep01", "ep02"]]


def test_a_full_batch_without_room_is_due_at_once():
    shard = Shard(bounds=BatchingBounds(max_sent_bytes=1))
    both = [pending_batch(*events(2), endpoint=name, max_events=3) for name in ("ep1", "ep2")]
    shard.step(both, now_ms=NOW)
    [first] = shard.step([pending_batch(*events(1), endpoint=name, max_events=3) for name in ("ep1", "ep2")], now_ms=NOW)
    assert batcher.backlog_of(shard.last).due_ms == 0
    [second] = shard.step([], now_ms=NOW)
    assert [(batch.endpoint_id, len(batch.packed)) for batch in (first, second)] == [("ep1", 3), ("ep2", 3)]
    assert batcher.backlog_of(shard.last).due_ms is None


def test_an_immediate_flush_is_sent_despite_a_full_decision():
    shard = Shard(bounds=BatchingBounds(max_sent_bytes=1))
    shard.step([pending_batch(*events(1), endpoint=name) for name in ("ep1", "ep2")], now_ms=NOW)
    passing = [pending_batch(*events(2), endpoint=name, mark=segment.Mark.IMMEDIATE) for name in ("ep3", "ep4")]
    assert [batch.endpoint_id for batch in shard.step(passing, now_ms=NOW + 1000)] == ["ep1", "ep3", "ep4"]


def test_a_segment_is_read_once_for_all_endpoints_and_not_kept():
    """Each of a thousand segments has events of three endpoints. Decoded segments that were kept filled the memory."""
    shard = Shard(bounds=BatchingBounds(max_segment_bytes=3 * segment.item(builders.event(), NOW).size))
    read = []
    [packed] = [
        written for written, _ in segment.encoded([pending_batch(*events(1), endpoint=f"ep{n:04}") for n in range(3000)])
    ]
    shard.decide([packed], now_ms=NOW)

    def read_segment(number):
        read.append(number)
        return shard.segments[number]

    deciding = batcher._Batcher(shard.index, read_segment, NOW + 1000, 0, shard.bounds)
    open_, take = [], deciding._remove_from_segment

    def counted(number, key):
        taken = take(number, key)
        open_.append(len(deciding._open))
        return taken

    deciding._remove_from_segment = counted
    assert len(deciding.decide([]).batches) == 3000
    assert sorted(read) == sorted(shard.segments)
    assert (max(open_), open_[-1]) == (1, 0)


def test_a_backlog_too_large_to_merge_is_still_sent():
    of = events(60)
    shard = Shard(bounds=BatchingBounds(merges=MergeBounds(max_merged_size=10 * segment.item(of[0], NOW).size)))
    written = []
    for event in of:
        shard.step([pending_batch(event, max_wait_ms=10**9)], now_ms=NOW)
        appended = [batch for stored in shard.last.append.values() for batch in segment.decoded(stored)]
        written.append(sum(len(batch.items) for batch in appended))
    assert 1 < max(written) <= 11
    [batch] = shard.step([], now_ms=NOW + 10**9)
    assert ids(batch) == [event.event_id for event in of]


def test_a_shard_without_state_has_an_empty_index():
    assert batcher.decoded(None) == batcher.BatchIndex()


def test_an_older_index_without_the_newest_fields_can_be_read():
    assert batcher.decoded(bytes((batcher.VERSION,)) + b"\x91\x07").next_number == 7
