"""Dead letters that a consumer got too often are parked, and a consumer says how many dead letters wait."""

import functools

import pytest

from subscriptions_db.archive.ingest import partitions
from subscriptions_db.archive.search import archived_dead_letters, consumers, counts
from subscriptions_db.archive.search.archive_positions import ReceiptHandle
from subscriptions_db.archive.search.receipts import ReceiptRefusal
from subscriptions_db.archive.search.selection import DeadLetterSearch
from tests.integration.archive.pollers import EVERYTHING, NOW, Pollers, after, all_of, positions

pytestmark = pytest.mark.integration


def test_a_dead_letter_is_parked_after_max_receives(connection, write):
    """As with maxReceiveCount of SQS, the poll after the last receive parks the dead letter, and gives the next ones."""
    write(4)
    pollers = Pollers(connection, max_receives=2)
    first = pollers.poll(limit=2, lease_s=10)
    pollers.give_back(first.leased[0])
    assert positions(pollers.poll(1, limit=1, lease_s=9)) == positions(first)[:1]  # given twice: a nack counts too
    again = pollers.poll(10, limit=3)
    assert pollers.parked().parked[0][1:] == (2, after(10))
    assert positions(again)[0] == positions(first)[1]
    assert [letter.times for letter in again.leased] == [2, 1, 1]
    assert positions(pollers.poll(1000)) == positions(again)[1:]
    assert [entry.letter.position for entry in pollers.parked().parked] == positions(first)
    assert pollers.poll(5000, limit=10).leased == []
    assert len(pollers.parked().parked) == 4
    [known] = consumers.list_consumers(connection, "c1")
    assert (known.unacknowledged, known.max_receives) == (0, 2)
    write(1)
    assert [letter.times for letter in pollers.poll(5000).leased] == [1]


def test_a_parked_dead_letter_is_leased_again_after_unpark(connection, write):
    write(3)
    pollers = Pollers(connection, max_receives=1)
    first = pollers.poll(lease_s=10)
    assert pollers.poll(10).leased == []
    assert pollers.unpark(*positions(first)[:1], 999, at=10) == (positions(first)[:1], False)
    assert pollers.unpark(positions(first)[0], at=10) == ([], False)  # it is not parked
    again = pollers.poll(10, lease_s=10)
    assert [(entry.letter.position, entry.times) for entry in again.leased] == [(positions(first)[0], 1)]
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
    assert [entry.letter.position for entry in pollers.parked().parked] == [second.letter.position]


def test_parked_dead_letters_leave_room_for_others(connection, write):
    """Without `max_receives`, a consumer that acks nothing gets only the first dead letters, again and again."""
    write(10)
    pollers = Pollers(connection, bounds={"max_unacknowledged": 4, "max_parked": 3})
    stuck = pollers.poll(lease_s=1)
    assert positions(pollers.poll(10, lease_s=1)) == positions(stuck)
    assert consumers.set_max_receives(*pollers._of, 2)
    at, given = 20, set(positions(stuck))
    for _ in range(20):
        polled = pollers.poll(at, lease_s=1)
        given |= set(positions(polled))
        at += 0 if polled.has_more else 10
    assert given == {letter.position for letter in all_of(connection)}
    assert len(pollers.parked().parked) == 10
    assert len(pollers.unpark(at=at, max_unacknowledged=4).positions) == 4
    assert pollers.unpark(at=at, max_unacknowledged=4) == ([], True)  # no room before an ack
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
        pages.append([entry.letter.position for entry in page.parked])
        past, more = page.until, page.has_more
    assert pages == [[positions(first)[0], positions(first)[2]], positions(first)[3:], []]
    pollers.unpark(at=20)
    assert len(pollers.poll(20).leased) == 4


def parked_positions(page):
    return [entry.letter.position for entry in page.parked]


def test_parked_dead_letters_are_paged_back_to_the_first(connection, write):
    """Regression: the list of parked dead letters was paged forward only, and without a total."""
    write(5)
    pollers = Pollers(connection, max_receives=1)
    first = positions(pollers.poll(lease_s=1))
    pollers.poll(10)
    archived_dead_letters.redrive(connection, "c1", first[2:3], now=NOW)
    page = pollers.parked_before(first[4], limit=2)
    assert (parked_positions(page), page.until, page.has_more) == ([first[1], first[3]], first[1], True)
    page = pollers.parked_before(page.until, limit=2)
    assert (parked_positions(page), page.has_more) == (first[:1], False)
    assert counts.of_parked(connection, "c1", "k", EVERYTHING) == (4, True)


def test_parked_dead_letters_are_found_by_search_criteria(connection, write):
    for n in range(4):
        write(endpoint=f"ep{n % 2}", event_type="user.created" if n else "order.created", event_id=f"Evt-{n}")
    write(event_id="Evt-not-parked")
    pollers = Pollers(connection, max_receives=1)
    first = positions(pollers.poll(limit=4, lease_s=1))
    pollers.poll(10, limit=1)
    for selection, wanted in (
        (DeadLetterSearch(endpoint_id="ep1"), [first[1], first[3]]),
        (DeadLetterSearch(event_type="user.*"), first[1:]),
        (DeadLetterSearch(text="evt-2"), [first[2]]),
        (DeadLetterSearch(text="evt-not"), []),
        (DeadLetterSearch(since=after(1)), []),
    ):
        assert parked_positions(pollers.parked(selection)) == wanted
        assert counts.of_parked(connection, "c1", "k", selection) == (len(wanted), True)


def test_a_search_of_parked_dead_letters_examines_a_bounded_number(connection, write):
    """A page ends where the bound ends, also if every examined dead letter was discarded."""
    write(5)
    pollers = Pollers(connection, max_receives=1)
    first = positions(pollers.poll(lease_s=1))
    pollers.poll(10)
    archived_dead_letters.discard(connection, "c1", first[:2], now=NOW)
    parked = (connection, "c1", EVERYTHING, "parked_after")
    search = functools.partial(archived_dead_letters.nearest, *parked, limit=10, consumer="k", most=2)
    pages = [search(0)]
    while pages[-1].has_more:
        pages.append(search(pages[-1].until))
    assert [page.positions for page in pages] == [[], first[2:4], first[4:]]
    assert pages[0].until == first[1]
    assert counts.of_parked(connection, "c1", "k", EVERYTHING, most=3) == (1, False)


def test_a_page_of_parked_dead_letters_is_bounded_in_bytes(connection, write):
    write(3, data=b"x" * 600_000)  # two have more than answer_size.MAX_BYTES
    pollers = Pollers(connection, max_receives=1)
    [first], [second], [third] = (positions(pollers.poll(lease_s=1)) for _ in range(3))
    pollers.poll(10)
    pages = [pollers.parked(past=past) for past in (0, first, second, third)]
    assert [parked_positions(page) for page in pages] == [[first], [second], [third], []]
    assert [page.has_more for page in pages] == [True, True, False, False]


def test_a_seek_unparks_what_is_read_again(connection, write):
    write(4)
    pollers = Pollers(connection, max_receives=1)
    first = pollers.poll(lease_s=1)
    pollers.poll(10)
    pollers.seek(positions(first)[1])
    assert [entry.letter.position for entry in pollers.parked().parked] == positions(first)[:2]
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
    assert [row["position"] for row in left] == [letter.position for letter in all_of(connection)]


def test_the_version_before_leases_no_parked_dead_letter(connection, write):
    """The test runs the statement of the version before, because both versions run side by side during an upgrade."""
    write(1)
    pollers = Pollers(connection, max_receives=1)
    pollers.poll(lease_s=1)
    pollers.poll(10)
    expired = "select position from dead_letter_leases where customer_id = 'c1' and consumer = 'k' and until <= now()"
    assert connection.execute(expired).fetchall() == []


def test_a_nack_by_the_version_before_unparks(connection, write):
    """Regression: the dead letter was parked and leased at the same time, and the API refused its new receipt handle."""
    write(1)
    pollers = Pollers(connection, max_receives=1)
    [held] = pollers.poll(lease_s=1).leased
    assert pollers.poll(10).leased == []
    nack = "update dead_letter_leases set token = null, until = %s where (position, token) = (%s, %s)"
    assert connection.execute(nack, (after(10), held.receipt.position, held.receipt.token)).rowcount == 1
    assert counted(connection, "k", at=10) == [((1, True), 0, (0, True))]
    renew = "update dead_letter_leases set token = gen_random_uuid(), until = %s where until <= %s returning position, token"
    [row] = connection.execute(renew, (after(70), after(10))).fetchall()
    assert (counted(connection, "k", at=11), pollers.parked().parked) == ([((0, True), 1, (0, True))], [])
    again = held._replace(receipt=ReceiptHandle(row["position"], row["token"]))
    assert pollers.extend(again, at=11, lease_s=60) == [71.0]
    assert pollers.give_back(again, at=11) == [held.letter.position]
    assert (pollers.poll(11).leased, len(pollers.parked().parked)) == ([], 1)


def counted(connection, *names, at, **bounds):
    """Return (waiting, leased, parked) of each consumer, as (number, exact) where a count is bounded."""
    found = counts.of_consumers(connection, "c1", names, now=after(at), **bounds)
    return [tuple(found[name]) for name in names]


def test_a_consumer_counts_what_waits_is_leased_and_is_parked(connection, write):
    write(8)
    pollers = Pollers(connection, max_receives=1)
    assert counted(connection, "k", at=0) == [((8, True), 0, (0, True))]
    parked = pollers.poll(limit=2, lease_s=1)
    held = pollers.poll(2, limit=3, lease_s=60)
    assert counted(connection, "k", at=2) == [((3, True), 3, (2, True))]
    pollers.give_back(held.leased[0], at=2, wait_s=30)
    pollers.acknowledge(held.leased[1])
    assert counted(connection, "k", at=3) == [((4, True), 1, (2, True))]
    assert counted(connection, "k", at=100) == [((5, True), 0, (2, True))]
    archived_dead_letters.redrive(connection, "c1", positions(parked)[:1], now=NOW)
    archived_dead_letters.discard(connection, "c1", positions(held)[2:], now=NOW)
    assert counted(connection, "k", at=3) == [((4, True), 1, (1, True))]  # the next poll drops a discarded one
    assert counted(connection, "k", at=100) == [((4, True), 0, (1, True))]  # also while nobody polls
    assert counted(connection, "k", at=3, most_of_one=2) == [((3, False), 1, (1, False))]
    pollers.poll(100, limit=4)
    assert counted(connection, "k", at=1000, most_of_one=2) == [((2, False), 0, (1, False))]  # four leases ended


def test_a_consumer_counts_by_its_selection(connection, write):
    selections = [
        (DeadLetterSearch(), 12), (DeadLetterSearch(event_type="order.*"), 4), (DeadLetterSearch(event_type="user.created"), 8),
        (DeadLetterSearch(endpoint_id="ep1"), 6), (DeadLetterSearch(reason="gone"), 6), (DeadLetterSearch(tenant_id="t2"), 1),
        (DeadLetterSearch(event_type="*", reason="gone", endpoint_id="ep0"), 3),
    ]  # fmt: skip
    for n in range(12):
        write(
            endpoint=f"ep{n % 2}", event_type="user.created" if n % 3 else "order.created", event_id=f"e{n}",
            reason="gone" if n >= 6 else "timeout", tenant_id="t2" if n == 11 else "t1",
        )  # fmt: skip
    write(customer="c2")
    names = [f"k{number}" for number in range(len(selections))]
    for name, (selection, wanted) in zip(names, selections, strict=True):
        Pollers(connection, name, selection)
        assert counts.of_dead_letters(connection, "c1", selection) == (wanted, True)
    assert [found[0] for found in counted(connection, *names, at=0)] == [(wanted, True) for _, wanted in selections]
    assert counts.of_dead_letters(connection, "c1", DeadLetterSearch(since=after(1))) == (0, True)
    assert [found[0] for found in counted(connection, *names[:3], at=0, most_in_list=3)] == [(3, False), (1, False), (2, False)]
    assert counts.of_dead_letters(connection, "c1", EVERYTHING, most=3) == (3, False)
