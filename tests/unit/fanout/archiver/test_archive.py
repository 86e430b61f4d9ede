"""Decisions of the archive: the first offset, the rows of a record, the days to keep, the end of a lease."""

import base64
import datetime as dt
import functools
import threading
import types
import uuid

import orjson
import pytest

from delivery import errors
from delivery.config import settings
from delivery.model import OutcomeKind
from delivery.webhooks.results import dead_letter_records, log_entries, log_records
from delivery.webhooks.results.log_entries import BatchAttemptEntry, BatchDeadLetteredEntry, RedrivenEntry
from fanout.archiver import main_loop, topic_reader
from fanout.redrive import redrive_plan
from subscriptions_db.archive.ingest import archived_rows, partitions
from subscriptions_db.archive.ingest.archived_rows import ArchivedRecord
from subscriptions_db.archive.search import archive_positions, archived_dead_letters, consumers
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
def test_archiving_begins_at_the_archived_offset(archived_until, low, high, start):
    assert topic_reader.start_of(archived_until, low, high) == start


def test_the_pause_after_failures_doubles_up_to_a_maximum():
    assert [main_loop.pause_s(failures) for failures in (1, 2, 3, 7, 1000)] == [0.5, 1, 2, 30, 30]


def test_rows_are_kept_for_the_retention_in_whole_days():
    assert partitions.oldest(TODAY, 30) == dt.date(2026, 4, 10)
    assert list(partitions.coming(TODAY)) == [dt.date(2026, 5, day) for day in (10, 11, 12)]
    kept = {day: partitions.is_kept(dt.date(2026, 5, day), TODAY, 7) for day in (2, 3, 12, 13)}
    assert kept == {2: False, 3: True, 12: True, 13: False}
    assert partitions.day_of(dt.datetime(2026, 5, 10, 23, tzinfo=dt.timezone(dt.timedelta(hours=-2)))) == dt.date(2026, 5, 11)


def test_the_seconds_of_a_lease_are_bounded():
    ends = [(consumers.lease_end(archive.NOW, asked_s) - archive.NOW).total_seconds() for asked_s in (-1, 0, 30, 1e9)]
    assert ends == [0, 0, 30, 43_200]


@pytest.mark.parametrize(
    ("limit", "again", "unacknowledged", "new"),
    [(10, 0, 0, 10), (10, 3, 3, 7), (10, 10, 10, 0), (10, 0, 9_995, 5), (10, 4, 12_000, 0)],
)
def test_a_poll_leases_at_most_its_limit_and_the_maximum(limit, again, unacknowledged, new):
    assert consumers.room(limit, again, unacknowledged) == new


def test_cursors_and_receipt_handles_are_decoded_as_encoded():
    receipt = archive_positions.ReceiptHandle(12, uuid.uuid4())
    moment = archive_positions.RecordPosition(archive.NOW + dt.timedelta(microseconds=1), 7)
    assert archive_positions.ReceiptHandle.read(receipt.text()) == receipt
    assert archive_positions.RecordPosition.read(moment.text()) == moment
    assert (
        archive_positions.letter_position(archive_positions.letter_cursor(archive_positions.MAX_POSITION))
        == archive_positions.MAX_POSITION
    )


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
        *(archive_positions._encoded("l", part) for part in ("-1", 2**63, "1.2", "x", "٣" * 9)),
    ],
)
def test_an_invented_cursor_or_receipt_handle_is_refused(text):
    for read in (
        archive_positions.letter_position,
        archive_positions.RecordPosition.read,
        archive_positions.ReceiptHandle.read,
    ):
        with pytest.raises(errors.RegistrationError, match="send one from an answer"):
            read(text)


def test_a_cursor_that_ends_before_the_first_dead_letter_is_refused():
    """Regression: the page had a next cursor that the next request refused."""
    with pytest.raises(errors.RegistrationError, match="send one from an answer"):
        archive_positions.letter_start(archive_positions.letter_cursor_back(0))
    assert archive_positions.letter_start(archive_positions.letter_cursor_back(1)) == (1, True)


def test_a_cursor_with_an_impossible_time_is_refused():
    with pytest.raises(errors.RegistrationError, match="cursor"):
        archive_positions.RecordPosition.read(archive_positions._encoded("a", archive_positions.MAX_POSITION, 1))
    with pytest.raises(errors.RegistrationError, match="receipt"):
        archive_positions.ReceiptHandle.read(archive_positions._encoded("r", 1, "no token"))


def test_a_dead_letter_is_archived_whole():
    written = archive.letter()
    row = archive.letter_row(written)
    assert (row.customer_id, row.endpoint_id, row.tenant_id) == ("c1", "ep1", "t1")
    assert (row.event_type, row.reason, row.dead_lettered_at) == ("order.created", "timeout", archive.NOW)
    assert row.payload == archive.PAYLOAD
    assert b"payload_base64" not in row.letter
    assert orjson.loads(archived_rows.topic_record(row.letter, row.payload)) == orjson.loads(written)


@pytest.mark.parametrize(
    ("fields", "data", "payload"),
    [
        ({}, b'{"a":1}', b'{"a":1}'),
        ({"payload_form": "text", "datacontenttype": "text/xml"}, b'"<a/>"', b"<a/>"),
        ({"payload_form": "bytes", "datacontenttype": "image/png"}, b'"/w=="', b"\xff"),
        ({"payload_form": "none"}, b"null", b"null"),
    ],
)
def test_an_archived_payload_comes_back_as_its_producer_wrote_it(fields, data, payload):
    written = orjson.loads(archive.letter()) | fields | {"payload_base64": base64.b64encode(data).decode()}
    row = archive.letter_row(orjson.dumps(written))
    found = archived_dead_letters.ArchivedDeadLetter(
        position=1, archived_at=archive.NOW, state=archived_dead_letters.LetterState.WAITING, state_since=archive.NOW,
        customer_id="c1", payload=row.payload, letter=row.letter,
    )  # fmt: skip
    assert (row.payload, found.payload_bytes()) == (data, payload)
    assert dead_letter_records.decode(archived_rows.topic_record(found.letter, found.payload)).payload() == payload


def test_a_searchable_text_is_truncated_and_the_record_is_not():
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
def test_a_record_that_is_no_dead_letter_is_unreadable(written):
    with pytest.raises((errors.RecordUnreadable, ValueError)):
        archive.letter_row(written)


@pytest.mark.parametrize(
    ("kind", "time"),
    [(log_entries.AttemptEntry, b"appended_at_ms"), (BatchAttemptEntry, b"oldest_appended_at_ms")],
)
def test_an_attempt_with_a_number_beyond_all_bounds_is_left_out(kind, time):
    """Regression: the archive ended with a traceback at each start, because it could not count the statistics."""
    written = log_records.encode(records.log(records.entry(kind))).replace(b'"%s":' % time, b'"%s":%s' % (time, b"1" * 400))
    fields = {"topic": "fanout.attempts", "partition": 0, "offset": 7, "value": written, "timestamp": (1, 0)}
    message = types.SimpleNamespace(**{name: functools.partial(lambda value: value, value) for name, value in fields.items()})
    archiver = main_loop.Archiver(settings.Settings(), threading.Event())
    assert archiver._archived_record(message, archive.NOW) == ArchivedRecord(topic="fanout.attempts", partition=0, offset=7)


def test_each_attempt_is_a_row():
    [written] = archive.attempts(archive.outcome(event_id="e1"), archive.outcome(event_id="e2"))
    first, second = archive.attempt_rows(written, archive.NOW + dt.timedelta(seconds=1))
    assert (first.event_id, second.event_id) == ("e1", "e2")
    assert (first.customer_id, first.endpoint_id, first.status, first.error_class) == ("c1", "ep1", 500, "server_error")
    assert (first.started_at, first.attempt, first.events, first.detail) == (archive.NOW, 1, 1, "no\ufffdthing")
    assert first.outcome is None


def test_an_attempt_of_a_batch_is_one_row_with_its_event_count():
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
def test_an_outcome_without_attempt_is_a_row_with_its_reason(types, outcome):
    of_delivery, of_batch = types
    made = records.entry(of_delivery, reason="expired"), records.entry(of_batch, reason="expired", count=7)
    single, batch = archived_rows.attempt_rows(records.log(*made), archive.NOW)
    for row in (single, batch):
        assert (row.outcome, row.error_class, row.started_at) == (outcome, "expired", archive.NOW)
        assert (row.attempt, row.webhook_id, row.status) == (0, "msg_1", None)
    assert (single.events, single.tenant_id, batch.events, batch.tenant_id) == (1, "t1", 7, None)


def test_outcomes_without_attempt_of_the_job_are_rows():
    kinds = [OutcomeKind.SKIPPED, OutcomeKind.POSTPONED, OutcomeKind.DEAD_LETTERED]
    [written] = archive.attempts(*(archive.without_attempt(kind, f"because-{kind}", event_id=kind) for kind in kinds))
    kept = archive.attempt_rows(written, archive.NOW)
    assert [(row.outcome, row.error_class, row.event_id) for row in kept] == [(kind, f"because-{kind}", kind) for kind in kinds]
    batch = archive.batch_outcome(count=3)
    skipped = batch._replace(outcome=batch.outcome._replace(kind=OutcomeKind.SKIPPED, attempts=(), reason="quarantined"))
    [only] = archive.attempt_rows(archive.attempts(skipped)[0], archive.NOW)
    assert (only.outcome, only.error_class, only.events) == ("skipped", "quarantined", 3)


def test_an_entry_without_webhook_id_is_no_row():
    nameless = records.entry(BatchDeadLetteredEntry, webhook_id="", reason="unforeseen")
    assert archived_rows.attempt_rows(records.log(nameless), archive.NOW) == []
    with pytest.raises(errors.RecordUnreadable):
        archived_rows.attempt_rows(records.log(endpoint_id="no id"), archive.NOW)


def test_dead_letters_of_a_batch_name_the_batch():
    batch = archive.batch_outcome(count=2)
    found = [row.letter for row in archive.taken_letters(0, batch, archive.outcome())]
    assert [row.batch_webhook_id for row in found] == [None, *[batch.outcome.delivery.webhook_id] * 2]
    nameless = orjson.dumps(orjson.loads(archive.letter()) | {"batch_webhook_id": ""})
    assert archive.letter_row(nameless).batch_webhook_id is None


def test_redrive_notes_are_rows_of_their_own_and_no_attempts():
    written = archive.letter(event_id="e1")
    [record] = redrive_plan.records([[dead_letter_records.decode(written)]], now_ms=0)
    assert archive.attempt_rows(record.note, archive.NOW) == []
    [noted] = archived_rows.redriven_rows(log_records.decode(record.note))
    letter = archive.letter_row(written)
    for name in ("customer_id", "endpoint_id", "webhook_id", "dead_lettered_at"):
        assert getattr(noted, name) == getattr(letter, name)
    assert archived_rows.event_place(letter.letter) == (noted.topic, noted.partition, noted.offset)
    assert archived_rows.redriven_rows(log_records.decode(archive.attempts(archive.outcome())[0])) == []
    with pytest.raises(errors.RecordUnreadable):
        archived_rows.redriven_rows(records.log(records.entry(RedrivenEntry), customer_id=""))


def test_a_page_ends_at_its_last_or_last_examined_dead_letter():
    full = archived_dead_letters.page({"positions": [3, 5], "looked_at": None}, place=1, most=5)
    assert (full.until, full.has_more) == (5, True)
    short = archived_dead_letters.page({"positions": [3], "looked_at": [4, 9]}, place=1, most=5)
    assert (short.until, short.has_more) == (9, False)
    looked_at_all_it_may = archived_dead_letters.page({"positions": [], "looked_at": [5, 9000]}, place=1, most=5)
    assert (looked_at_all_it_may.until, looked_at_all_it_may.has_more) == (9000, True)
    nothing = archived_dead_letters.page({"positions": [], "looked_at": [0, None]}, place=1, most=5)
    assert (nothing.until, nothing.has_more) == (1, False)
