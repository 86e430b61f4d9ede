"""What a shard of the retry lane lets go when, and what it keeps."""

from delivery.webhooks import segment
from tests.retries import NOW, Shard, accepted, postponed, waiting


def ids(turn):
    return [segment.unpacked(packed).event_id for parcel in turn.parcels for packed in parcel.packed]


def events_of(*parcels):
    return [segment.unpacked(packed).event_id for parcel in parcels for packed in parcel.packed]


def test_what_may_be_attempted_leaves_at_once_and_is_gone_when_its_turn_is_reported():
    shard, parcels = Shard(), [waiting(), waiting()]
    [turn] = shard.step(postponed(*parcels), now_ms=NOW)
    assert (turn.parcels, turn.number, turn.given_up) == (parcels, 1, None)
    assert shard.told.events == 2
    assert shard.step(accepted(turn), now_ms=NOW + 1) == []
    assert shard.is_empty()


def test_what_waits_does_not_leave_a_millisecond_early():
    shard = Shard(horizon_ms=500)
    shard.step(postponed(waiting(again_at_ms=NOW + 5000)), now_ms=NOW)
    assert shard.told.due_ms == NOW + 5500, "it is woken a horizon ahead"
    assert shard.step(now_ms=NOW + 4999) == []
    assert len(shard.step(now_ms=NOW + 5000)) == 1
