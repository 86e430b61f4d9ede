"""Customers page through dead letters, and pollers share them: none is lost, and no poller waits for another."""

import contextlib
import random

import orjson
import pytest

from delivery import errors
from subscriptions_db.archive.search import (
    archive_positions,
    archived_dead_letters,
    consumers,
    receipts,
    redrive_requests,
)
from subscriptions_db.archive.search.archived_dead_letters import LetterState
from subscriptions_db.archive.search.receipts import ReceiptRefusal
from subscriptions_db.archive.search.selection import DeadLetterSearch
from tests.integration.archive.pollers import EVERYTHING, NOW, Pollers, after, all_of, positions
from tests.support import waiting

pytestmark = pytest.mark.integration


@pytest.fixture
def pollers(connection):
    return Pollers(connection)


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


def found_by(connection, selection, *, most):
    """Return the dead letters that match, found by searches of which each examines `most`."""
    found, at, more = [], 0, True
    while more:
        page = archived_dead_letters.find(connection, "c1", selection, after=at, limit=3, most=most)
        found += archived_dead_letters.waiting(connection, "c1", page.positions)
        at, more = page.until, page.has_more
    return found


def test_dead_letters_are_found_by_search_criteria(connection, write):
    for n in range(12):
        write(
            endpoint=f"ep{1 - n % 2}", event_type="user.created" if n % 3 else "order.created", dead_lettered_at=after(n),
            reason="gone" if n >= 6 else "timeout", tenant_id="t2" if n == 11 else "t1", event_id=f"e{n}",
        )  # fmt: skip
    write(customer="c2")
    for selection, wanted in ASKED_FOR:
        for found in (all_of(connection, selection), found_by(connection, selection, most=2)):
            assert [orjson.loads(entry.letter)["event_id"] for entry in found] == [f"e{n}" for n in wanted], selection


def test_two_pollers_of_a_consumer_share_the_dead_letters(connection, write, pollers):
    write(25)
    first, second, third = pollers.poll(), pollers.poll(), pollers.poll()
    assert (len(first.leased), len(second.leased), len(third.leased)) == (10, 10, 5)
    assert (first.has_more, third.has_more) == (True, False)
    shared = positions(first) + positions(second) + positions(third)
    assert shared == [letter.position for letter in all_of(connection)]
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
    assert [letter.times for letter in again.leased] == [2, 2]
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
    """As with ChangeMessageVisibility of SQS, the new length counts from the request, and may end the lease sooner."""
    write(2)
    first, second = pollers.poll(lease_s=30).leased
    assert pollers.extend(first, first, at=20, lease_s=60) == [80, 80]
    assert pollers.extend(second, at=20, lease_s=5) == [25]
    assert [entry.letter.position for entry in pollers.poll(29.9).leased] == [second.letter.position]
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
    unknown = archive_positions.ReceiptHandle(held.letter.position + 1, held.receipt.token)
    asked = [lost.receipt, held.receipt, late.receipt, unknown, returned.receipt, held.receipt]
    again, none = ReceiptRefusal.LEASED_AGAIN, ReceiptRefusal.NOT_LEASED
    nacked = receipts.nack(*pollers._of, asked, now=after(100))
    assert [result.refusal for result in nacked] == [again, None, None, none, none, None]
    [leased] = pollers.poll(100, limit=1).leased
    acked = receipts.ack(*pollers._of, [held.receipt, leased.receipt, late.receipt, leased.receipt])
    assert [result.refusal for result in acked].count(None) == 2
    assert acked[1] == acked[3] == (leased.letter.position, None, None)


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


def test_the_selection_of_a_consumer_does_not_change(connection, write):
    pollers = Pollers(connection, selection=DeadLetterSearch(event_type="order.*"))
    write(archived_dead_letters.MAX_LOOKED_AT, event_type="user.created")  # the first poll gets no further
    for _ in range(2):
        write(event_type="order.created")
        write(9, event_type="user.created")
    given, polls, has_more = [], [], True
    while has_more:
        polled = pollers.poll()
        given, has_more = given + polled.leased, polled.has_more
        polls.append(len(polled.leased))
    assert polls == [0, 2]
    assert [orjson.loads(entry.letter.letter)["event_type"] for entry in given] == ["order.created"] * 2
    assert not consumers.create(connection, "c1", "k", EVERYTHING)
    [known] = consumers.list_consumers(connection, "c1")
    assert (known.name, known.selection.event_type, known.unacknowledged) == ("k", "order.*", 2)
    with pytest.raises(errors.RegistrationError, match="seek"):
        consumers.create(connection, "c1", "other", DeadLetterSearch(since=NOW))
    assert consumers.delete(connection, "c1", "k")
    assert not consumers.delete(connection, "c1", "k")
    with pytest.raises(errors.RegistrationError, match="this customer has no consumer k, so nothing was changed"):
        pollers.poll()


def test_a_consumer_without_acks_gets_at_most_the_maximum(connection, write):
    pollers = Pollers(connection, bounds={"max_unacknowledged": 4})
    write(10)
    first = pollers.poll()
    assert len(first.leased) == 4
    assert pollers.poll(1).leased == []
    assert positions(pollers.poll(60)) == positions(first)
    pollers.acknowledge(*pollers.poll(120).leased[:2])
    assert len(pollers.poll(121).leased) == 2


def test_a_discarded_or_redriven_letter_is_not_leased(connection, write, pollers):
    write(5)
    first, second, third, fourth, fifth = positions(pollers.poll(lease_s=10))
    assert archived_dead_letters.discard(connection, "c1", [first, second, 999], now=NOW) == [first, second]
    assert archived_dead_letters.redrive(connection, "c1", [second, third], now=NOW) == [second, third]
    assert archived_dead_letters.discard(connection, "c1", [second, third], now=NOW) == []
    assert archived_dead_letters.redrive(connection, "c2", [fourth], now=NOW) == []
    assert positions(pollers.poll(10)) == [fourth, fifth]
    assert [letter.position for letter in all_of(connection)] == [fourth, fifth]
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


def test_a_redrive_of_many_leaves_out_a_letter_discarded_meanwhile(connection, opened, write, in_background):
    """Regression: a redrive by search criteria, or by the recovery of an endpoint, redrove such a dead letter."""
    write(2)
    first, second = (letter.position for letter in all_of(connection))
    asked = (opened(), "c1", DeadLetterSearch(), LetterState.REDRIVING)
    with connection.transaction():
        archived_dead_letters.discard(connection, "c1", [first], now=NOW)
        redriven = in_background(lambda: archived_dead_letters.mark_all(*asked, after=0, limit=9, now=NOW))
        waiting.for_a_lock(opened())
    assert redriven.result(30).count == 1
    states = [archived_dead_letters.get(connection, "c1", position).state for position in (first, second)]
    assert states == [LetterState.DISCARDED, LetterState.REDRIVING]


def test_a_redrive_that_crashes_before_its_commit_is_repeated(connection, opened, write):
    class Killed(Exception):
        pass

    write(3)
    asked = archived_dead_letters.redrive(connection, "c1", [letter.position for letter in all_of(connection)], now=NOW)
    with contextlib.suppress(Killed), redrive_requests.claim_page(opened(), now=NOW) as turn:
        assert len(turn) == 3
        with redrive_requests.claim_page(connection, now=NOW) as meanwhile:
            assert meanwhile == []  # another process has them
        raise Killed
    with redrive_requests.claim_page(connection, now=NOW) as turn:
        assert all(orjson.loads(request.record())["webhook_id"] for request in turn)
        assert [request.position for request in turn] == sorted(asked)
    with redrive_requests.claim_page(connection, now=NOW) as turn:
        assert turn == []
    assert {archived_dead_letters.get(connection, "c1", position).state for position in asked} == {LetterState.REDRIVEN}


def test_a_page_of_redrive_requests_is_bounded_in_bytes(connection, write):
    write(4, data=b"x" * 3000)
    archived_dead_letters.redrive(connection, "c1", [letter.position for letter in all_of(connection)], now=NOW)
    turns = []
    while True:
        with redrive_requests.claim_page(connection, now=NOW, max_bytes=5000) as turn:
            turns.append(len(turn))
        if not turn:
            break
    assert turns == [1, 1, 1, 1, 0]


@pytest.mark.parametrize("seed", range(4))
def test_crashing_pollers_lose_nothing_and_repeat_only_leases(connection, opened, write, seed):
    """Two pollers crash with their leases, ack late, or nack at random. In the end every dead letter is handled."""
    rng, clock = random.Random(seed), 0.0
    both = [Pollers(connection), object.__new__(Pollers)]
    both[1]._of, both[1]._bounds = (opened(), "c1", "k"), {}
    held, handled, given, published = [[], []], set(), {}, 0
    while len(handled) < 40 or published < 40:
        clock += rng.expovariate(1 / 4)
        who = rng.randrange(2)
        match rng.choice(["write", "poll", "poll", "poll", "acknowledge", "acknowledge", "give back", "die"]):
            case "write" if published < 40:
                published += (count := min(rng.randint(1, 8), 40 - published))
                write(count)
            case "poll":
                for leased in both[who].poll(clock, limit=rng.randint(1, 7), lease_s=10).leased:
                    position = leased.letter.position
                    # Nobody else has it: it was never given, or its lease was over, or it was given back.
                    assert given.get(position, 0) <= clock
                    given[position] = clock + 10
                    assert position not in handled
                    held[who].append(leased)
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
