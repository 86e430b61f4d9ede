"""After the operator accepts a loss, a lane reads all records that Kafka still has."""

from hypothesis import given
from hypothesis import strategies as st

from delivery.stages.checkpoint import losses

OFFSETS = st.integers(0, 20)
HELD = st.tuples(OFFSETS, OFFSETS).map(lambda two: losses.OffsetRange(min(two), max(two)))
PLACES = st.tuples(st.sampled_from(["orders", "invoices"]), st.integers(0, 2))


def positions(at):
    found = {}
    for (topic, number), offset in at.items():
        found.setdefault(topic, {})[str(number)] = offset
    return found


@given(at=st.dictionaries(PLACES, OFFSETS), held=st.dictionaries(PLACES, HELD), more=st.dictionaries(PLACES, OFFSETS))
def test_no_kept_record_is_left_out_or_read_again(at, held, more):
    now, lost = losses.moved(positions(at), held)
    why = {(loss.topic, loss.partition): loss for loss in lost}
    ends = {place: at.get(place, 0) + count for place, count in more.items()}
    until = losses.clamped(positions(ends), held)
    for place, before in at.items():
        topic, number = place[0], str(place[1])
        if place not in held:
            assert (why[place].why, number in now.get(topic, {})) == (losses.LossReason.DELETED, False)
            continue
        there, begins = held[place], now[topic][number]
        unread = [offset for offset in range(there.low, there.end) if offset >= before or before > there.end]
        assert list(range(begins, there.end)) == unread
        assert (place in why) == (begins != before)
        if place in why and why[place].why == losses.LossReason.EXPIRED:
            assert (why[place].first, why[place].last) == (before, there.low - 1)
        if place in ends:  # a micro-batch that was broken off reads no further than before, and never backwards
            assert begins <= until[topic][number] <= max(there.low, min(ends[place], there.end))


@given(at=st.dictionaries(PLACES, OFFSETS, min_size=1), held=st.dictionaries(PLACES, HELD))
def test_a_new_partition_is_read_from_its_first_kept_record(at, held):
    now, lost = losses.moved(positions(at), held)
    for place in held.keys() - at.keys():
        low = held[place].low
        assert now.get(place[0], {}).get(str(place[1]), 0) == low
        assert [(loss.first, loss.last) for loss in lost if (loss.topic, loss.partition) == place] == (
            [(0, low - 1)] if low else []
        )


@given(at=st.dictionaries(PLACES, OFFSETS), held=st.dictionaries(PLACES, HELD))
def test_an_accepted_loss_is_no_loss_any_more(at, held):
    now, _ = losses.moved(positions(at), held)
    assert losses.moved(now, held) == (now, [])
