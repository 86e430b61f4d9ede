"""What the task that delivers turns learns, before it delivers them, of turns that were lost."""

from delivery.stages import deliver_turns
from delivery.stages.journal import Journal
from delivery.webhooks import parcel, rows
from tests.turns import turn

TOPICS = rows.Topics(attempts="a", dead_letters="d", rejected="r", retries="t")


class Known(Journal):
    """A journal of what was written in an earlier micro-batch, and a note of each time that it is read."""

    def since(self, since_ms):
        self.client["read"].append(since_ms)
        return frozenset({b"%d" % since_ms})


def learned(*lost):
    """Go through turns whose parcels were lost at these times; return when what was read, and what was known at each turn."""
    of, known = Known(client={"read": []}, topics=TOPICS, since_ms=0), set()
    partition = deliver_turns.DeliverTurnsPartition(tools=None, source=None, settle_s=1, journal=of)
    turns = [parcel.encoded(turn(lost_ms=lost_ms)) for lost_ms in lost]
    at_each = [set(known) for _ in partition._learning(iter(turns), known)]
    return of.client["read"], at_each


def test_the_journal_is_read_for_a_turn_that_was_lost_before_it_is_delivered_and_for_no_other():
    assert learned(0, 0) == ([], [set(), set()])
    assert learned(0, 700, 0) == ([700], [set(), {b"700"}, {b"700"}])


def test_the_journal_is_read_once_for_all_that_was_lost_since():
    assert learned(700, 800, 600) == ([700, 600], [{b"700"}, {b"700"}, {b"700", b"600"}])
