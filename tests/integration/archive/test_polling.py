"""Customers page through dead letters, and pollers share them: none is lost, and no poller waits for another."""

import contextlib
import datetime as dt
import random

import orjson
import pytest

from delivery import errors
from subscriptions_db.archive.ingest import partitions
from subscriptions_db.archive.search import archived_dead_letters, consumers, cursor, parked_letters, receipts, redrive_requests
from subscriptions_db.archive.search.archived_dead_letters import LetterState
from subscriptions_db.archive.search.receipts import ReceiptRefusal
from subscriptions_db.archive.search.selection import DeadLetterSearch
from tests.support import archive

pytestmark = pytest.mark.integration
EVERYTHING = DeadLetterSearch()
NOW = archive.NOW


def after(seconds):
    return NOW + dt.timedelta(seconds=seconds)


def settled(results):
    return sorted(one.position for one in results if one.refusal is None)


class Pollers:
    """The pollers of consumer `k` of customer c1."""

    def __init__(self, connection, name="k", selection=EVERYTHING, **fields):
        self._of = (connection, "c1", name)
        assert consumers.create(*self._of, selection, **fields)

    def poll(self, at=0, *, limit=10, lease_s=60.0):
        return consumers.lease(*self._of, limit=limit, lease_s=lease_s, now=after(at))

    def acknowledge(self, *leased):
        return settled(receipts.ack(*self._of, [one.receipt for one in leased]))

    def give_back(self, *leased, at=0, wait_s=0):
        return settled(receipts.nack(*self._of, [one.receipt for one in leased], now=after(at), wait_s=wait_s))

    def extend(self, *leased, at, lease_s):
        found = receipts.extend(*self._of, [one.receipt for one in leased], now=after(at), lease_s=lease_s)
        return [one.refusal or (one.until - NOW).total_seconds() for one in found]

    def seek(self, position):
        consumers.seek(*self._of, after=position)

    def parked(self, *, past=0, limit=10):
        return parked_letters.browse(*self._of, after=past, limit=limit)

    def unpark(self, *positions, at=0):
        return parked_letters.unpark(*self._of, list(positions) or None, now=after(at))


@pytest.fixture
def pollers(connection):
    return Pollers(connection)


def positions(given):
    return [one.letter.position for one in given.leased]


def all_of(connection, selection=EVERYTHING, limit=3):
    found, at = [], 0
    while True:
        page = archived_dead_letters.browse(connection, "c1", selection, after=at, limit=limit)
        found += page.letters
        at = cursor.letter_position(cursor.letter_cursor(page.until))
        if not page.has_more:
            return found


ASKED_FOR = [
    (DeadLetterSearch(), range(12)),
    (DeadLetterSearch(endpoint_id="ep1"), range(0, 12, 2)),
    (DeadLetterSearch(event_type="order.created"), range(0, 12, 3)),
    (DeadLetterSearch(event_type="order.*"), range(0, 12, 3)),
    (DeadLetterSearch(event_type="order.*", endpoint_id="ep0"), (3, 9)),
    (DeadLetterSearch(reason="gone"), range(6, 12)),
    (DeadLetterSearch(tenant_id="t2"), (11,)),
    (DeadLetterSearch(since=after(10), until=after(11)), (10,)),
    (DeadLetterSearch(endpoint_id="nobody's"), ()),
]


def test_dead_letters_are_found_by_search_criteria(connection, write, monkeypatch):
    for n in range(12):
        write(
            endpoint=f"ep{1 - n % 2}", event_type="user.created" if n % 3 else "order.created", dead_lettered_at=after(n),
            reason="gone" if n >= 6 else "timeout", tenant_id="t2" if n == 11 else "t1", event_id=f"e{n}",
        )  # fmt: skip
    write(customer="c2")
    for looked_at in (5000, 2):
        monkeypatch.setattr(archived_dead_letters, "MAX_LOOKED_AT", looked_at)
        for selection, wanted in ASKED_FOR:
            found = [orjson.loads(one.letter)["event_id"] for one in all_of(connection, selection)]
            assert found == [f"e{n}" for n in wanted], selection


def test_two_pollers_of_a_consumer_share_the_dead_letters(connection, write, pollers):
    write(25)
    first, second, third = pollers.poll(), pollers.poll(), pollers.poll()
    assert (len(first.leased), len(second.leased), len(third.leased)) == (10, 10, 5)
    assert (first.has_more, third.has_more) == (True, False)
    shared = positions(first) + positions(second) + positions(third)
    assert shared == [one.position for one in all_of(connection)]
    assert pollers.poll().leased == []


def test_consumers_do_not_affect_each_other(connection, write, pollers):
    write(5)
    pollers.acknowledge(*pollers.poll().leased)
    assert len(Pollers(connection, "another").poll().leased) == 5


def test_a_dead_letter_without_ack_is_leased_again_after_expiry(write, pollers):
    write(3)
    first = pollers.poll(lease_s=30)
    assert pollers.acknowledge(first.leased[1]) == [first.leased[1].letter.position]
    assert pollers.poll(29.9).leased == []
    again = pollers.poll(30)
    assert positions(again) == [positions(first)[0], positions(first)[2]]
    assert [one.times for one in again.leased] == [2, 2]
    assert pollers.acknowledge(*first.leased) == []  # another has them by now
    assert pollers.acknowledge(*again.leased) == positions(again)
    assert pollers.poll(1000).leased == []


def test_a_late_ack_counts_if_no_other_poller_has_the_lease(write, pollers):
    write(1)
    first = pollers.poll(lease_s=1)
    assert len(pollers.acknowledge(*first.leased)) == 1
    assert pollers.poll(100).leased == []


def test_a_nacked_dead_letter_is_leased_again_after_the_wait(write, pollers):
    write(2)
    first = pollers.poll()
    assert pollers.give_back(first.leased[0]) == positions(first)[:1]
    assert pollers.give_back(first.leased[1], wait_s=20) == positions(first)[1:]
    assert pollers.acknowledge(*first.leased) == []
    assert positions(pollers.poll(1)) == positions(first)[:1]
    assert positions(pollers.poll(20)) == positions(first)[1:]


def test_a_poller_extends_its_lease_up_to_the_maximum_after_its_poll(write, pollers):
    """As ChangeMessageVisibility of SQS: it counts from now on, and a lease can also end sooner."""
    write(2)
    first, second = pollers.poll(lease_s=30).leased
    assert pollers.extend(first, first, at=20, lease_s=60) == [80, 80]
    assert pollers.extend(second, at=20, lease_s=5) == [25]
    assert [one.letter.position for one in pollers.poll(29.9).leased] == [second.letter.position]
    assert pollers.extend(second, first, at=40_000, lease_s=10_000) == [ReceiptRefusal.LEASED_AGAIN, consumers.MAX_LEASE_S]
    assert pollers.extend(first, at=consumers.MAX_LEASE_S, lease_s=1) == [ReceiptRefusal.TOO_LONG]
    assert pollers.acknowledge(first) == [first.letter.position]
    assert pollers.extend(first, at=40_000, lease_s=1) == [ReceiptRefusal.NOT_LEASED]


def test_the_maximum_of_a_lease_counts_from_its_last_poll(write, pollers):
    write(1)
    pollers.poll(lease_s=10)
    [again] = pollers.poll(50_000).leased
    assert pollers.extend(again, at=60_000, lease_s=40_000) == [50_000 + consumers.MAX_LEASE_S]


def test_each_receipt_handle_has_its_own_result(write, pollers):
    write(5)
    lost, late, returned, moved, held = pollers.poll(lease_s=10).leased
    pollers.give_back(returned, moved, wait_s=1000)
    pollers.extend(late, held, at=5, lease_s=20)
    pollers.poll(10)
    unknown = cursor.ReceiptHandle(held.letter.position + 1, held.receipt.token)
    asked = [lost.receipt, held.receipt, late.receipt, unknown, returned.receipt, held.receipt]
    again, none = ReceiptRefusal.LEASED_AGAIN, ReceiptRefusal.NOT_LEASED
    nacked = receipts.nack(*pollers._of, asked, now=after(100))
    assert [one.refusal for one in nacked] == [again, None, None, none, none, None]
    [one] = pollers.poll(100, limit=1).leased
    acked = receipts.ack(*pollers._of, [held.receipt, one.receipt, late.receipt, one.receipt])
    assert [one.refusal for one in acked].count(None) == 2
    assert acked[1] == acked[3] == (one.letter.position, None, None)


def test_a_consumer_seeks_forwards_and_backwards(connection, write, pollers):
    write(3)
    write(3, now=after(100))
    first = pollers.poll()
    pollers.seek(positions(first)[1])
    assert positions(pollers.poll()) == positions(first)[2:]
    pollers.seek(consumers.position_before(connection, "c1", after(100)))
    assert positions(pollers.poll()) == positions(first)[3:]
    pollers.seek(consumers.position_before(connection, "c1", after(101)))
    assert pollers.poll().leased == []
    pollers.seek(0)
    assert positions(pollers.poll()) == positions(first)
    assert pollers.acknowledge(*first.leased) == []  # what was given before the seek acknowledges nothing


def test_the_selection_of_a_consumer_does_not_change(connection, write, monkeypatch):
    monkeypatch.setattr(archived_dead_letters, "MAX_LOOKED_AT", 4)
    pollers = Pollers(connection, selection=DeadLetterSearch(event_type="order.*"))
    for n in range(20):
        write(event_type="order.created" if n % 10 == 9 else "user.created")
    given, has_more = [], True
    while has_more:
        polled = pollers.poll()
        given, has_more = given + polled.leased, polled.has_more
    assert [orjson.loads(one.letter.letter)["event_type"] for one in given] == ["order.created"] * 2
    assert not consumers.create(connection, "c1", "k", EVERYTHING)
    [known] = consumers.list_consumers(connection, "c1")
    assert (known.name, known.selection.event_type, known.unacknowledged) == ("k", "order.*", 2)
    with pytest.raises(errors.RegistrationError, match="seek"):
        consumers.create(connection, "c1", "other", DeadLetterSearch(since=NOW))
    assert consumers.delete(connection, "c1", "k")
    assert not consumers.delete(connection, "c1", "k")
    with pytest.raises(errors.RegistrationError, match="no such consumer"):
        pollers.poll()


def test_a_consumer_without_acks_gets_at_most_the_maximum(write, pollers, monkeypatch):
    monkeypatch.setattr(consumers, "MAX_UNACKNOWLEDGED", 4)
    write(10)
    first = pollers.poll()
    assert len(first.leased) == 4
    assert pollers.poll(1).leased == []
    assert positions(pollers.poll(60)) == positions(first)
    pollers.acknowledge(*pollers.poll(120).leased[:2])
    assert len(pollers.poll(121).leased) == 2


def test_a_dead_letter_is_parked_after_max_receives(connection, write):
    """As maxReceiveCount of SQS: it is parked when a poll would give it once more. Then the next ones are given."""
    write(4)
    pollers = Pollers(connection, max_receives=2)
    first = pollers.poll(limit=2, lease_s=10)
    pollers.give_back(first.leased[0])
    assert positions(pollers.poll(1, limit=1, lease_s=9)) == positions(first)[:1]  # given twice: a nack counts too
    again = pollers.poll(10, limit=3)
    assert pollers.parked().parked[0][1:] == (2, after(10))
    assert positions(again)[0] == positions(first)[1]
    assert [one.times for one in again.leased] == [2, 1, 1]
    assert positions(pollers.poll(1000)) == positions(again)[1:]
    assert [one.letter.position for one in pollers.parked().parked] == positions(first)
    assert pollers.poll(5000, limit=10).leased == []
    assert len(pollers.parked().parked) == 4
    [known] = consumers.list_consumers(connection, "c1")
    assert (known.unacknowledged, known.max_receives) == (0, 2)
    write(1)
    assert [one.times for one in pollers.poll(5000).leased] == [1]


def test_a_parked_dead_letter_is_leased_again_after_unpark(connection, write):
    write(3)
    pollers = Pollers(connection, max_receives=1)
    first = pollers.poll(lease_s=10)
    assert pollers.poll(10).leased == []
    assert pollers.unpark(*positions(first)[:1], 999, at=10) == (positions(first)[:1], False)
    assert pollers.unpark(positions(first)[0], at=10) == ([], False)  # it is not parked
    again = pollers.poll(10, lease_s=10)
    assert [(one.letter.position, one.times) for one in again.leased] == [(positions(first)[0], 1)]
    assert pollers.acknowledge(*first.leased[:1]) == []
    assert pollers.poll(20).leased == []
    assert pollers.unpark(at=20) == (positions(first), False)
    assert positions(pollers.poll(20)) == positions(first)


def test_the_last_poller_of_a_parked_dead_letter_can_only_ack_it(connection, write):
    write(2)
    pollers = Pollers(connection, max_receives=1)
    first, second = pollers.poll(lease_s=10).leased
    pollers.poll(10)
    assert pollers.extend(first, at=10, lease_s=10) == [ReceiptRefusal.PARKED]
    assert pollers.give_back(first) == []
    assert pollers.acknowledge(first) == [first.letter.position]
    assert [one.letter.position for one in pollers.parked().parked] == [second.letter.position]


def test_parked_dead_letters_leave_room_for_others(connection, write, monkeypatch):
    """A consumer that acks nothing gets the first ones again and again: with `max_receives`, it gets all."""
    monkeypatch.setattr(consumers, "MAX_UNACKNOWLEDGED", 4)
    monkeypatch.setattr(consumers, "MAX_PARKED_PER_POLL", 3)
    write(10)
    pollers = Pollers(connection)
    stuck = pollers.poll(lease_s=1)
    assert positions(pollers.poll(10, lease_s=1)) == positions(stuck)
    assert consumers.set_max_receives(*pollers._of, 2)
    at, given = 20, set(positions(stuck))
    for _ in range(20):
        polled = pollers.poll(at, lease_s=1)
        given |= set(positions(polled))
        at += 0 if polled.has_more else 10
    assert given == {one.position for one in all_of(connection)}
    assert len(pollers.parked().parked) == 10
    assert len(pollers.unpark(at=at).positions) == 4
    assert pollers.unpark(at=at) == ([], True)  # no room before an ack
    assert not consumers.set_max_receives(connection, "c2", "k", 2)


def test_parked_dead_letters_are_paged_and_only_those_that_wait(connection, write):
    write(5)
    pollers = Pollers(connection, max_receives=1)
    first = pollers.poll(lease_s=1)
    pollers.poll(10)
    archived_dead_letters.discard(connection, "c1", positions(first)[1:2], now=NOW)
    pages, past, more = [], 0, True
    while more:
        page = pollers.parked(past=past, limit=2)
        pages.append([one.letter.position for one in page.parked])
        past, more = page.until, page.has_more
    assert pages == [positions(first)[:1], positions(first)[2:4], positions(first)[4:]]
    pollers.unpark(at=20)
    assert len(pollers.poll(20).leased) == 4


def test_a_seek_unparks_what_is_read_again(connection, write):
    write(4)
    pollers = Pollers(connection, max_receives=1)
    first = pollers.poll(lease_s=1)
    pollers.poll(10)
    pollers.seek(positions(first)[1])
    assert [one.letter.position for one in pollers.parked().parked] == positions(first)[:2]
    assert positions(pollers.poll(20)) == positions(first)[2:]
    assert pollers.acknowledge(*first.leased) == []
    pollers.seek(0)
    assert pollers.parked().parked == []
    assert len(pollers.poll(30).leased) == 4


def test_parked_dead_letters_go_with_their_day(connection, write):
    write(2)
    write(1, now=after(86_400))
    pollers = Pollers(connection, max_receives=1)
    pollers.poll(lease_s=1)
    pollers.poll(10)
    assert len(partitions.drop(connection, "dead_letters", partitions.day_of(after(86_400)))) >= 1
    left = connection.execute("select position from dead_letter_leases").fetchall()
    assert [row["position"] for row in left] == [one.position for one in all_of(connection)]


def test_the_version_before_leases_no_parked_dead_letter(connection, write):
    """Its statement, in its own words: both versions run side by side for a while."""
    write(1)
    pollers = Pollers(connection, max_receives=1)
    pollers.poll(lease_s=1)
    pollers.poll(10)
    expired = "select position from dead_letter_leases where customer_id = 'c1' and consumer = 'k' and until <= now()"
    assert connection.execute(expired).fetchall() == []


def test_a_discarded_or_redriven_letter_is_not_leased(connection, write, pollers):
    write(5)
    first, second, third, fourth, fifth = positions(pollers.poll(lease_s=10))
    assert archived_dead_letters.discard(connection, "c1", [first, second, 999], now=NOW) == [first, second]
    assert archived_dead_letters.redrive(connection, "c1", [second, third], now=NOW) == [second, third]
    assert archived_dead_letters.discard(connection, "c1", [second, third], now=NOW) == []
    assert archived_dead_letters.redrive(connection, "c2", [fourth], now=NOW) == []
    assert positions(pollers.poll(10)) == [fourth, fifth]
    assert [one.position for one in all_of(connection)] == [fourth, fifth]
    assert archived_dead_letters.get(connection, "c1", first).state is LetterState.DISCARDED
    assert archived_dead_letters.get(connection, "c2", first) is None
    [known] = consumers.list_consumers(connection, "c1")
    assert known.unacknowledged == 2


def test_dead_letters_are_marked_by_search_criteria(connection, write):
    write(7, endpoint="ep2")
    write(3, endpoint="ep3")
    at, counts, more = 0, [], True
    while more:
        marked = archived_dead_letters.mark_all(
            connection, "c1", DeadLetterSearch(endpoint_id="ep2"), LetterState.REDRIVING, after=at, limit=3, now=NOW
        )  # fmt: skip
        at, more = marked.until, marked.has_more
        counts.append(marked.count)
    assert counts == [3, 3, 1]
    assert len(all_of(connection)) == 3


def test_a_redrive_that_crashes_before_its_commit_is_repeated(connection, opened, write):
    class Killed(Exception):
        pass

    write(3)
    asked = archived_dead_letters.redrive(connection, "c1", [one.position for one in all_of(connection)], now=NOW)
    with contextlib.suppress(Killed), redrive_requests.claim_page(opened(), now=NOW) as turn:
        assert len(turn) == 3
        with redrive_requests.claim_page(connection, now=NOW) as meanwhile:
            assert meanwhile == []  # another process has them
        raise Killed
    with redrive_requests.claim_page(connection, now=NOW) as turn:
        assert [orjson.loads(one.written)["webhook_id"] for one in turn]
        assert [(one.topic, one.partition, one.offset) for one in turn] == [("dead-letters", 0, n) for n in range(3)]
    with redrive_requests.claim_page(connection, now=NOW) as turn:
        assert turn == []
    assert {archived_dead_letters.get(connection, "c1", position).state for position in asked} == {LetterState.REDRIVEN}


def test_a_page_of_redrive_requests_is_bounded_in_bytes(connection, write, monkeypatch):
    monkeypatch.setattr(redrive_requests, "MAX_BYTES", 5000)
    write(4, data=b"x" * 3000)
    archived_dead_letters.redrive(connection, "c1", [one.position for one in all_of(connection)], now=NOW)
    turns = []
    while True:
        with redrive_requests.claim_page(connection, now=NOW) as turn:
            turns.append(len(turn))
        if not turn:
            break
    assert turns == [1, 1, 1, 1, 0]


@pytest.mark.parametrize("seed", range(4))
def test_crashing_pollers_lose_nothing_and_repeat_only_leases(connection, opened, write, seed):
    """Two pollers crash with their leases, ack late, or nack at random. In the end every dead letter is handled."""
    rng, clock = random.Random(seed), 0.0
    both = [Pollers(connection), object.__new__(Pollers)]
    both[1]._of = (opened(), "c1", "k")
    held, handled, given, published = [[], []], set(), {}, 0
    while len(handled) < 40 or published < 40:
        clock += rng.expovariate(1 / 4)
        who = rng.randrange(2)
        match rng.choice(["write", "poll", "poll", "poll", "acknowledge", "acknowledge", "give back", "die"]):
            case "write" if published < 40:
                published += (count := min(rng.randint(1, 8), 40 - published))
                write(count)
            case "poll":
                for one in both[who].poll(clock, limit=rng.randint(1, 7), lease_s=10).leased:
                    position = one.letter.position
                    # Nobody else has it: it was never given, or its lease was over, or it was given back.
                    assert given.get(position, 0) <= clock
                    given[position] = clock + 10
                    assert position not in handled
                    held[who].append(one)
            case "acknowledge":
                handled |= set(both[who].acknowledge(*held[who]))
                held[who] = []
            case "give back":
                for position in both[who].give_back(*held[who], at=clock):
                    given[position] = clock
                held[who] = []
            case "die":
                held[who] = []
    assert handled == {row["position"] for row in connection.execute("select position from dead_letters")}
    assert both[0].poll(clock + 1000).leased == []


def test_a_crash_inside_a_poll_leaves_its_letters_to_the_next(opened, write, pollers):
    class Killed(Exception):
        pass

    write(3)
    dying = opened()
    with contextlib.suppress(Killed), dying.transaction():
        assert len(consumers.lease(dying, "c1", "k", limit=10, lease_s=60, now=NOW).leased) == 3
        raise Killed
    assert len(pollers.poll().leased) == 3
