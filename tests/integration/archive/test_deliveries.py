"""The search for deliveries finds each delivery once, with the right status, whatever the order of its records."""

import datetime as dt

import pytest

from delivery.config import settings
from delivery.model import OutcomeKind
from subscriptions_db.archive.ingest import writer
from subscriptions_db.archive.search import archived_dead_letters, attempts, deliveries, records
from subscriptions_db.archive.search.archive_positions import PageStart
from subscriptions_db.archive.search.archived_dead_letters import LetterState
from subscriptions_db.archive.search.deliveries import DeliverySearch, DeliveryStatus
from subscriptions_db.postgres import connect, migrate
from tests.support import archive

pytestmark = pytest.mark.integration


def after(seconds):
    return archive.NOW + dt.timedelta(seconds=seconds)


def failed(seconds=0, number=1, event_id="e1", **fields):
    made = archive.outcome(at=after(seconds), event_id=event_id, **fields)
    attempt = made.attempts[0]._replace(number=number)
    return made._replace(kind=OutcomeKind.POSTPONED, attempts=(attempt,), reason=attempt.error_class)


def accepted(seconds=0, number=1, **fields):
    made = failed(seconds, number, **fields)
    return made._replace(
        kind=OutcomeKind.DELIVERED, attempts=(made.attempts[0]._replace(status=200, error_class=None),), reason=None
    )


def outcome_of(kind, reason, event_id="e1", **fields):
    return archive.without_attempt(kind, reason, event_id=event_id, **fields)


SKIPPED = outcome_of(OutcomeKind.SKIPPED, "subscription_paused")
POSTPONED = outcome_of(OutcomeKind.POSTPONED, "circuit_open")
EXPIRED = outcome_of(OutcomeKind.DEAD_LETTERED, "expired")
GIVEN_UP = archive.outcome(event_id="e1")


@pytest.fixture
def keep(connection):
    """Archive outcomes of deliveries, written `at_s` seconds later, with the dead letters of those that were given up."""
    offsets = iter(range(0, 1_000_000, 1000))

    def kept(*outcomes, at_s=0, given_up_s=None):
        taken = [archive.taken_attempts(next(offsets), *outcomes, at=after(at_s))]
        taken += archive.taken_letters(next(offsets), *outcomes, at=after(at_s if given_up_s is None else given_up_s))
        writer.write(connection, taken, archive.KEPT, now=archive.NOW)

    return kept


@pytest.fixture
def found(connection):
    def deliveries_of(customer="c1", limit=100, start=records.NEWEST, **asked):
        return deliveries.search(connection, customer, DeliverySearch(**asked), start=start, limit=limit).deliveries

    return deliveries_of


@pytest.mark.parametrize(
    ("story", "status", "expected"),
    [
        ([(0, accepted())], DeliveryStatus.DELIVERED, (None, 1, 0)),
        ([(0, failed())], DeliveryStatus.WAITING, ("server_error", 1, 0)),
        ([(0, failed()), (5, accepted(5, 2))], DeliveryStatus.DELIVERED, (None, 2, 0)),
        ([(0, SKIPPED)], DeliveryStatus.SKIPPED, ("subscription_paused", 0, 0)),
        ([(0, POSTPONED)], DeliveryStatus.WAITING, ("circuit_open", 0, 0)),
        ([(0, POSTPONED), (5, accepted(5))], DeliveryStatus.DELIVERED, (None, 1, 0)),
        # A background attempt: the deferral was logged when the attempt had begun, and the result later.
        ([(1, POSTPONED), (2, accepted(0))], DeliveryStatus.DELIVERED, (None, 1, 0)),
        ([(1, POSTPONED), (2, failed(0))], DeliveryStatus.WAITING, ("server_error", 1, 0)),
        ([(0, failed()), (9, SKIPPED)], DeliveryStatus.SKIPPED, ("subscription_paused", 1, 0)),
        # Somebody had it made again.
        ([(0, SKIPPED), (9, accepted(9))], DeliveryStatus.DELIVERED, (None, 1, 0)),
        ([(0, accepted()), (9, failed(9))], DeliveryStatus.WAITING, ("server_error", 2, 0)),
        ([(0, GIVEN_UP)], DeliveryStatus.DEAD_LETTERED, ("timeout", 1, 1)),
        ([(0, POSTPONED), (9, EXPIRED)], DeliveryStatus.DEAD_LETTERED, ("expired", 0, 1)),
        ([(0, failed()), (9, EXPIRED)], DeliveryStatus.DEAD_LETTERED, ("expired", 1, 1)),
        # Given up, redriven, and …
        ([(0, GIVEN_UP), (9, failed(9, 2))], DeliveryStatus.WAITING, ("server_error", 2, 0)),
        ([(0, GIVEN_UP), (9, accepted(9, 2))], DeliveryStatus.DELIVERED, (None, 2, 0)),
        ([(0, GIVEN_UP), (9, archive.outcome(event_id="e1", at=after(8)))], DeliveryStatus.DEAD_LETTERED, ("timeout", 2, 1)),
    ],
)  # fmt: skip
def test_the_newest_record_decides_the_status_of_a_delivery(keep, found, story, status, expected):
    for at_s, outcome in story:
        keep(outcome, at_s=at_s)
    [only] = found()
    assert (only.status, only.reason, only.attempts, only.dead_letters) == (status, *expected)
    assert (only.event_id, only.event_type, only.tenant_id, only.subscription_id) == ("e1", "order.created", "t1", "s1")
    assert found(status=status, webhook_id=only.webhook_id) == [only]
    assert [found(status=other) for other in DeliveryStatus if other is not status] == [[]] * 3


def test_a_dead_lettered_delivery_names_its_dead_letter(connection, keep, found):
    keep(archive.outcome(event_id="e1"))
    [only] = found()
    [letter] = archived_dead_letters.browse(
        connection, "c1", archived_dead_letters.DeadLetterSearch(), after=0, limit=10
    ).letters
    assert (only.dead_letter, only.dead_letter_state) == (letter.position, LetterState.WAITING)
    archived_dead_letters.redrive(connection, "c1", [letter.position], now=archive.NOW)
    assert found()[0].dead_letter_state is LetterState.REDRIVING


def test_a_dead_letter_may_precede_the_outcome_record(keep, found):
    keep(POSTPONED)
    keep(EXPIRED, at_s=9, given_up_s=8.9)
    [only] = found(status=DeliveryStatus.DEAD_LETTERED)
    assert (only.dead_letters, only.dead_letter_state) == (1, LetterState.WAITING)


def test_a_batch_is_one_delivery_with_its_dead_letter_count(keep, found):
    keep(archive.batch_outcome(count=4), at_s=1)
    keep(archive.batch_outcome(count=5, rejected=[1, 3], endpoint="ep2", at=after(2)), at_s=3)
    taken, given_up = found()
    assert (given_up.status, given_up.events, given_up.dead_letters, given_up.reason) == (
        DeliveryStatus.DEAD_LETTERED,
        4,
        4,
        "timeout",
    )
    assert (given_up.event_id, given_up.event_type, given_up.subscription_id) == (None, None, None)
    assert (taken.status, taken.events, taken.dead_letters, taken.reason) == (DeliveryStatus.DELIVERED, 5, 2, None)


def test_repeated_records_make_one_delivery(keep, found):
    for _ in range(3):
        keep(failed(), POSTPONED)
    [only] = found()
    assert only.attempts == 3


def test_a_delivery_is_sorted_by_its_first_record(keep, found):
    for number in range(4):
        keep(failed(number, event_id=f"e{number}"), at_s=number)
    keep(accepted(60, 2, event_id="e1"), at_s=60)
    assert [delivery.event_id for delivery in found()] == ["e3", "e2", "e1", "e0"]
    assert [
        (delivery.event_id, delivery.began_at, delivery.newest_at) for delivery in found(status=DeliveryStatus.DELIVERED)
    ] == [("e1", after(1), after(60))]
    assert [delivery.event_id for delivery in found(since=after(1), until=after(3))] == ["e2", "e1"]
    assert found(since=after(4)) == []


def test_deliveries_are_found_by_search_criteria(keep, found):
    keep(
        accepted(0, event_id="a", event_type="order.made"),
        failed(1, event_id="b", endpoint="ep2", tenant_id="t2"),
        failed(2, event_id="c", event_type="user.made"),
        accepted(3, event_id="theirs", customer="c2", endpoint="ep9"),
    )

    def ids(**asked):
        return [delivery.event_id for delivery in found(**asked)]

    assert ids() == ["c", "b", "a"]
    assert ids(endpoint_id="ep1") == ["c", "a"]
    assert (ids(event_type="order.*"), ids(event_type="user.made"), ids(event_type="user")) == (["b", "a"], ["c"], [])
    assert (ids(tenant_id="t2"), ids(tenant_id="t3")) == (["b"], [])
    assert (ids(reason="server_error"), ids(reason="timeout")) == (["c", "b"], [])
    assert ids(customer="c2") == ["theirs"]
    [theirs] = found(customer="c2")
    assert found(webhook_id=theirs.webhook_id) == []


def test_each_delivery_is_on_one_page(connection, keep):
    for number in range(9):
        keep(failed(number, event_id=f"e{number}"), at_s=number)
        keep(accepted(number + 20, 2, event_id=f"e{number}"), at_s=number + 20)
    paged, start = [], records.NEWEST
    while (page := deliveries.search(connection, "c1", DeliverySearch(), start=start, limit=2)).further:
        assert len(page.deliveries) == 2
        paged += page.deliveries
        start = PageStart(page.further)
        keep(failed(100, 3, event_id="e0"), at_s=100)  # what comes meanwhile moves nothing
    assert [delivery.event_id for delivery in paged + page.deliveries] == [f"e{number}" for number in reversed(range(9))]


def test_a_rare_delivery_is_found_over_several_pages(connection, keep):
    keep(*(accepted(-number, event_id=f"e{number}") for number in range(34)), failed(-34, event_id="rare"))
    pages, start = 0, records.NEWEST
    asked = DeliverySearch(status=DeliveryStatus.WAITING)
    while not (page := deliveries.search(connection, "c1", asked, start=start, limit=5, most=10)).deliveries:
        pages, start = pages + 1, PageStart(page.further)
    assert (pages, [delivery.event_id for delivery in page.deliveries]) == (3, ["rare"])
    [rare] = page.deliveries
    assert deliveries.get(connection, "c1", rare.webhook_id, most=10) == rare
    assert deliveries.get(connection, "c2", rare.webhook_id) is None


def test_a_delivery_of_very_many_records_is_found_by_its_id(connection, keep):
    keep(*(failed(number, number + 1) for number in range(10)))
    assert deliveries.get(connection, "c1", archive.outcome(event_id="e1").delivery.webhook_id, most=3).attempts == 10
    assert deliveries.get(connection, "c1", "msg_nobodys") is None


def test_the_newest_records_of_a_reused_webhook_id_are_examined(connection, keep):
    def found(**asked):
        bounds = {"most_of_one": 3, "most_letters": 2}
        return deliveries.search(connection, "c1", DeliverySearch(**asked), limit=10, **bounds).deliveries

    for number in range(5):
        keep(failed(number), at_s=number)
    assert [(delivery.began_at, delivery.newest_at, delivery.attempts) for delivery in found()] == [(archive.NOW, after(4), 3)]
    keep(archive.batch_outcome(count=5), at_s=1)
    assert [delivery.dead_letters for delivery in found(status=DeliveryStatus.DEAD_LETTERED)] == [2]


def test_an_outcome_without_attempt_is_not_listed_as_attempt(connection, keep):
    keep(SKIPPED, failed(1, event_id="e2"))
    found = attempts.search(connection, "c1", attempts.AttemptSearch(), limit=10)
    assert [attempt.event_id for attempt in found.attempts] == ["e2"]
    [row] = connection.execute("select started_at, position from attempts where outcome is not null").fetchall()
    assert attempts.get(connection, "c1", attempts.RecordPosition(**row)) is None


def test_deliveries_of_an_older_version_are_found(empty_database):
    with connect.connect(settings.DatabaseSettings(url=empty_database)) as connection:
        migrate.migrate(connection, [migration for migration in migrate.migrations() if migration.name < "0013"])
        connection.execute("insert into customers values ('c1')")
        connection.execute("select make_archive_day('attempts', %s)", [archive.NOW.date()])
        connection.execute(
            "insert into attempts (started_at, customer_id, endpoint_id, webhook_id, attempt, duration_ms, error_class)"
            " values (%(at)s, 'c1', 'ep1', 'msg_1', 1, 1.5, 'timeout'), (%(later)s, 'c1', 'ep1', 'msg_1', 2, 1.5, null)",
            {"at": archive.NOW, "later": after(5)},
        )
        migrate.migrate(connection)
        [only] = deliveries.search(connection, "c1", DeliverySearch(), limit=10).deliveries
        assert (only.webhook_id, only.status, only.attempts) == ("msg_1", DeliveryStatus.DELIVERED, 2)
