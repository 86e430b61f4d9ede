"""What the archive decides: where to begin, what it keeps of a record, which days, for how long a lease."""

import datetime as dt
import uuid

import orjson
import pytest

from delivery import errors
from delivery.model import OutcomeKind
from delivery.webhooks.results import dead_letter_records, log_entries, log_records
from delivery.webhooks.results.log_entries import BatchAttemptEntry, BatchDeadLetteredEntry, RedrivenEntry
from fanout.archiver import process, source
from fanout.redrive import redrive_plan
from subscriptions_db.archive.ingest import archived_rows, partitions
from subscriptions_db.archive.search import archived_dead_letters, consumers, cursor
from tests.support import archive, records

TODAY = dt.date(2026, 5, 10)


@pytest.mark.parametrize(
    ("archived_until", "low", "high", "start"),
    [
        (None, 5, 9, (5, 0, False)),
        (7, 5, 9, (7, 0, False)),
        (9, 5, 9, (9, 0, False)),
        (2, 5, 9, (5, 3, False)),  # 2, 3 and 4 are gone
        (10, 0, 9, (0, 0, True)),  # another topic of this name
    ],
)
def test_a_partition_is_taken_up_where_the_archive_is(archived_until, low, high, start):
    assert source.start_of(archived_until, low, high) == start


def test_the_pause_doubles_up_to_a_bound():
    assert [process.pause_s(failures) for failures in (1, 2, 3, 7, 1000)] == [0.5, 1, 2, 30, 30]


def test_a_day_is_kept_for_as_many_whole_days_as_are_asked_for():
    assert partitions.oldest(TODAY, 30) == dt.date(2026, 4, 10)
    assert list(partitions.coming(TODAY)) == [dt.date(2026, 5, day) for day in (10, 11, 12)]
    kept = {day: partitions.is_kept(dt.date(2026, 5, day), TODAY, 7) for day in (2, 3, 12, 13)}
    assert kept == {2: False, 3: True, 12: True, 13: False}
    assert partitions.day_of(dt.datetime(2026, 5, 10, 23, tzinfo=dt.timezone(dt.timedelta(hours=-2)))) == dt.date(2026, 5, 11)


def test_a_lease_has_bounds():
    ends = [(consumers.lease_end(archive.NOW, asked_s) - archive.NOW).total_seconds() for asked_s in (-1, 0, 30, 1e9)]
    assert ends == [0, 0, 30, 43_200]


@pytest.mark.parametrize(
    ("limit", "again", "unacknowledged", "new"),
    [(10, 0, 0, 10), (10, 3, 3, 7), (10, 10, 10, 0), (10, 0, 9_995, 5), (10, 4, 12_000, 0)],
)
def test_a_poll_gives_what_is_asked_for_within_the_bound(limit, again, unacknowledged, new):
    assert consumers.room(limit, again, unacknowledged) == new


def test_places_are_read_back_as_they_were_given():
    receipt = cursor.ReceiptHandle(12, uuid.uuid4())
    moment = cursor.AttemptPosition(archive.NOW + dt.timedelta(microseconds=1), 7)
    assert cursor.ReceiptHandle.read(receipt.text()) == receipt
    assert cursor.AttemptPosition.read(moment.text()) == moment
    assert cursor.letter_position(cursor.letter_cursor(cursor.MAX_POSITION)) == cursor.MAX_POSITION


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "=",
        "a" * 200,
        "bDox",
        "\u00e9",
        "bC4t",
        "\0",
        *(cursor._encoded("l", part) for part in ("-1", 2**63, "1.2", "x", "٣" * 9)),
    ],
)
def test_a_place_that_was_never_given_is_refused(text):
    for read in (cursor.letter_position, cursor.AttemptPosition.read, cursor.ReceiptHandle.read):
        with pytest.raises(errors.RegistrationError, match="send one from an answer"):
            read(text)


def test_a_moment_beyond_all_time_is_refused():
    with pytest.raises(errors.RegistrationError, match="cursor"):
        cursor.AttemptPosition.read(cursor._encoded("a", cursor.MAX_POSITION, 1))
    with pytest.raises(errors.RegistrationError, match="receipt"):
        cursor.ReceiptHandle.read(cursor._encoded("r", 1, "no token"))


def test_a_letter_is_kept_whole():
    written = archive.letter()
    row = archive.letter_row(written)
    assert (row.customer_id, row.endpoint_id, row.tenant_id) == ("c1", "ep1", "t1")
    assert (row.event_type, row.reason, row.dead_lettered_at) == ("order.created", "timeout", archive.NOW)
    assert row.payload == archive.PAYLOAD
    assert b"payload_base64" not in row.letter
    assert orjson.loads(archived_rows.topic_record(row.letter, row.payload)) == orjson.loads(written)


def test_what_is_asked_for_is_cut_to_what_an_index_takes_and_the_letter_has_it_whole():
    row = archive.letter_row(archive.letter(event_type="order\0" + "x" * 1000))
    assert row.event_type == "order\ufffd" + "x" * 249
    assert orjson.loads(row.letter)["event_type"] == "order\0" + "x" * 1000


@pytest.mark.parametrize(
    "written",
    [
        b"", b"{", b"[]", b"null", b"{}", b"\xff", b'"a"',
        orjson.dumps(orjson.loads(archive.letter()) | {"payload_base64": "?"}),
        orjson.dumps(orjson.loads(archive.letter()) | {"customer_id": "no id"}),
        orjson.dumps(orjson.loads(archive.letter()) | {"endpoint_id": None}),
        orjson.dumps(orjson.loads(archive.letter()) | {"dead_lettered_at_ms": 10**18}),
    ],
)  # fmt: skip
def test_a_record_that_is_no_dead_letter_is_said_to_be_none(written):
    with pytest.raises((errors.RecordUnreadable, ValueError)):
        archive.letter_row(written)


def test_attempts_are_kept_one_a_request():
    [written] = archive.attempts(archive.outcome(event_id="e1"), archive.outcome(event_id="e2"))
    first, second = archive.attempt_rows(written, archive.NOW + dt.timedelta(seconds=1))
    assert (first.event_id, second.event_id) == ("e1", "e2")
    assert (first.customer_id, first.endpoint_id, first.status, first.error_class) == ("c1", "ep1", 500, "server_error")
    assert (first.started_at, first.attempt, first.events, first.detail) == (archive.NOW, 1, 1, "no\ufffdthing")
    assert first.outcome is None


def test_a_batch_is_one_attempt_that_says_how_many_events_it_had():
    entry = records.entry(BatchAttemptEntry, count=7, status=200)
    [only] = archived_rows.attempt_rows(records.log(entry, mode="batch"), archive.NOW)
    assert (only.events, only.event_id, only.event_type, only.status) == (7, None, None, 200)


@pytest.mark.parametrize(
    ("types", "outcome"),
    [
        (log_entries.SKIPPED, "skipped"),
        (log_entries.POSTPONED, "postponed"),
        (log_entries.DEAD_LETTERED, "dead_lettered"),
    ],
)
def test_what_is_not_attempted_is_kept_with_its_reason_as_of_when_it_was_told(types, outcome):
    of_delivery, of_batch = types
    made = records.entry(of_delivery, reason="expired"), records.entry(of_batch, reason="expired", count=7)
    single, batch = archived_rows.attempt_rows(records.log(*made), archive.NOW)
    for one in (single, batch):
        assert (one.outcome, one.error_class, one.started_at) == (outcome, "expired", archive.NOW)
        assert (one.attempt, one.webhook_id, one.status) == (0, "msg_1", None)
    assert (single.events, single.tenant_id, batch.events, batch.tenant_id) == (1, "t1", 7, None)


def test_what_the_job_skips_postpones_and_gives_up_without_an_attempt_is_kept():
    kinds = [OutcomeKind.SKIPPED, OutcomeKind.POSTPONED, OutcomeKind.DEAD_LETTERED]
    [written] = archive.attempts(*(archive.without_attempt(kind, f"because-{kind}", event_id=kind) for kind in kinds))
    kept = archive.attempt_rows(written, archive.NOW)
    assert [(one.outcome, one.error_class, one.event_id) for one in kept] == [(kind, f"because-{kind}", kind) for kind in kinds]
    batch = archive.batch_outcome(count=3)
    skipped = batch._replace(outcome=batch.outcome._replace(kind=OutcomeKind.SKIPPED, attempts=(), reason="quarantined"))
    [only] = archive.attempt_rows(archive.attempts(skipped)[0], archive.NOW)
    assert (only.outcome, only.error_class, only.events) == ("skipped", "quarantined", 3)


def test_what_is_neither_an_attempt_nor_a_delivery_is_passed_over():
    nameless = records.entry(BatchDeadLetteredEntry, webhook_id="", reason="unforeseen")
    assert archived_rows.attempt_rows(records.log(nameless), archive.NOW) == []
    with pytest.raises(errors.RecordUnreadable):
        archived_rows.attempt_rows(records.log(endpoint_id="no id"), archive.NOW)


def test_the_letters_of_a_batch_say_which_it_was():
    batch = archive.batch_outcome(count=2)
    found = [one.letter for one in archive.taken_letters(0, batch, archive.outcome())]
    assert [one.batch_webhook_id for one in found] == [None, *[batch.outcome.delivery.webhook_id] * 2]
    nameless = orjson.dumps(orjson.loads(archive.letter()) | {"batch_webhook_id": ""})
    assert archive.letter_row(nameless).batch_webhook_id is None


def test_the_notes_of_a_redrive_are_kept_and_are_no_attempts():
    written = archive.letter(event_id="e1")
    [record] = redrive_plan.records([[dead_letter_records.decode(written)]], now_ms=0)
    assert archive.attempt_rows(record.note, archive.NOW) == []
    [noted] = archived_rows.redriven_rows(log_records.decode(record.note))
    letter = archive.letter_row(written)
    for name in ("customer_id", "endpoint_id", "webhook_id", "dead_lettered_at"):
        assert getattr(noted, name) == getattr(letter, name)
    assert archived_rows.redriven_rows(log_records.decode(archive.attempts(archive.outcome())[0])) == []
    with pytest.raises(errors.RecordUnreadable):
        archived_rows.redriven_rows(records.log(records.entry(RedrivenEntry), customer_id=""))


def test_a_page_that_is_full_ends_with_its_last_letter_and_one_that_is_not_with_what_was_looked_at():
    full = archived_dead_letters.page({"positions": [3, 5], "looked_at": None}, after=1)
    assert (full.until, full.has_more) == (5, True)
    short = archived_dead_letters.page({"positions": [3], "looked_at": [4, 9]}, after=1)
    assert (short.until, short.has_more) == (9, False)
    looked_at_all_it_may = archived_dead_letters.page(
        {"positions": [], "looked_at": [archived_dead_letters.MAX_LOOKED_AT, 9000]}, after=1
    )
    assert (looked_at_all_it_may.until, looked_at_all_it_may.has_more) == (9000, True)
    nothing = archived_dead_letters.page({"positions": [], "looked_at": [0, None]}, after=1)
    assert (nothing.until, nothing.has_more) == (1, False)
