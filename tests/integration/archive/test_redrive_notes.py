"""A dead letter that a command redrove waits no longer in the archive, whether its note or the letter arrives first."""

import contextlib
import datetime as dt

import orjson
import pytest

from delivery import errors
from delivery.webhooks.results import dead_letter_records, log_records
from fanout.redrive import redrive_plan
from subscriptions_db.archive.ingest import archived_rows, partitions, redrive_notes, writer
from subscriptions_db.archive.ingest.archived_rows import ArchivedRecord
from subscriptions_db.archive.search import archived_dead_letters
from subscriptions_db.archive.search import redrive_requests as turns
from subscriptions_db.archive.search.archived_dead_letters import LetterState
from tests.support import archive, builders

pytestmark = pytest.mark.integration
LATER = archive.NOW + dt.timedelta(hours=1)


def taken(offset, written, *, partition=0):
    return ArchivedRecord(topic="dead-letters", partition=partition, offset=offset, letter=archive.letter_row(written))


def note(*written, offset=0):
    """Return the record of the attempts topic that `fanout dead-letters redrive` writes for these dead letters."""
    requests = [[dead_letter_records.decode(letter)] for letter in written]
    [record] = redrive_plan.records(requests, now_ms=0)
    return ArchivedRecord(
        topic="attempts", partition=0, offset=offset, redriven=archived_rows.redriven_rows(log_records.decode(record.note))
    )


def write(connection, *records, now=archive.NOW):
    return writer.write(connection, records, archive.KEPT, now=now)


def states(connection):
    found = connection.execute("select letter, state from dead_letters order by position").fetchall()
    return [(orjson.loads(row["letter"])["event_id"], row["state"]) for row in found]


def count_notes(connection):
    [row] = connection.execute("select count(*) as n from redrive_notes").fetchall()
    return row["n"]


PUT_NOTE_BEFORE_0035 = """
insert into redrive_notes (customer_id, endpoint_id, webhook_id, dead_lettered_at, noted_at)
values (%(customer_id)s, %(endpoint_id)s, %(webhook_id)s, %(dead_lettered_at)s, now()) on conflict do nothing
"""
E1, E2 = archive.letter(event_id="e1"), archive.letter(event_id="e2")


@pytest.mark.parametrize("is_first", [True, False])
def test_a_note_marks_its_dead_letter_in_either_order(connection, is_first):
    records = [(note(E1),), (taken(0, E1), taken(1, E2))]
    for some in records if is_first else reversed(records):
        write(connection, *some)
    assert states(connection) == [("e1", "redriven"), ("e2", "waiting")]
    assert count_notes(connection) == 0


def test_only_a_redrive_by_command_is_audited_with_its_note(connection):
    e3 = archive.letter(event_id="e3")
    write(connection, taken(0, E1), taken(1, E2), taken(2, e3))
    [position] = [row["position"] for row in connection.execute("select min(position) as position from dead_letters")]
    archived_dead_letters.redrive(connection, "c1", [position], now=archive.NOW)
    connection.execute("update dead_letters set state = 'redriven' where state = 'redriving'")
    write(connection, note(E1, E2, e3))
    noted = connection.execute("select key_id, customer_id, action, entity, entity_id, after from audit_log").fetchall()
    entry = {"key_id": "command", "customer_id": "c1", "action": "redrive", "entity": "dead_letters", "entity_id": "c1"}
    assert noted == [entry | {"after": {"count": 2}}]


def test_a_dead_letter_and_its_note_may_be_read_together(connection):
    write(connection, taken(0, E1), note(E1))
    assert states(connection) == [("e1", "redriven")]


def test_a_delivery_given_up_again_waits_again(connection):
    again = archive.letter(event_id="e1", dead_lettered_at=LATER)
    write(connection, taken(0, E1), note(E1), taken(1, again))
    assert states(connection) == [("e1", "redriven"), ("e1", "waiting")]
    write(connection, note(again, offset=1))
    assert states(connection) == [("e1", "redriven")] * 2


def test_an_older_dead_letter_of_the_delivery_is_marked_too(connection):
    again = archive.letter(event_id="e1", dead_lettered_at=LATER)
    write(connection, note(again))
    write(connection, taken(0, E1))
    assert (states(connection), count_notes(connection)) == ([("e1", "redriven")], 1)
    write(connection, taken(1, again))
    assert (states(connection), count_notes(connection)) == ([("e1", "redriven")] * 2, 0)


def test_a_note_is_about_one_endpoint_of_one_customer(connection):
    others = [archive.letter(event_id="e1", customer="c2"), archive.letter(event_id="e1", endpoint="ep2")]
    write(connection, taken(0, E1), *(taken(1 + place, event) for place, event in enumerate(others)), note(E1))
    assert [state for _, state in states(connection)] == ["redriven", "waiting", "waiting"]


def reused(offset, *, at=archive.NOW):
    """Return a dead letter of an event with the id `e1`, which the producer gave to several records."""
    return archive.letter(event_id="e1", record=builders.record(offset=offset), dead_lettered_at=at)


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("at", [archive.NOW, LATER])
def test_a_note_is_about_one_of_two_records_with_one_webhook_id(connection, at, is_first):
    """Regression: the earlier dead letter became `redriven`, and it was never enqueued."""
    a, b = reused(7), reused(14, at=at)
    steps = [(note(b),), (taken(0, a),), (taken(1, b),)]
    for records in steps if is_first else [*steps[1:], steps[0]]:
        write(connection, *records)
    assert states(connection) == [("e1", "waiting"), ("e1", "redriven")]
    assert count_notes(connection) == 0
    [entry] = connection.execute("select after from audit_log").fetchall()
    assert entry["after"] == {"count": 1}


@pytest.mark.parametrize("is_first", [True, False])
def test_two_records_with_one_webhook_id_have_a_note_each(connection, is_first):
    letters = [reused(7), reused(14)]  # given up at the same time
    steps = [(note(*letters),), (taken(0, letters[0]),), (taken(1, letters[1]),)]
    for records in steps if is_first else [*steps[1:], steps[0]]:
        write(connection, *records)
    assert (states(connection), count_notes(connection)) == ([("e1", "redriven")] * 2, 0)


def test_notes_of_a_reused_webhook_id_read_each_letter_once(connection, monkeypatch):
    """Regression: the archive stopped for all customers, because it read each dead letter once for each note.

    1,000 notes of a redrive and 5,000 dead letters with one `webhook-id` were 5,000,000 dead letters in memory.
    """
    decoded = []
    place_of = archived_rows.event_place
    monkeypatch.setattr(archived_rows, "event_place", lambda letter: decoded.append(letter) or place_of(letter))
    letters = [reused(offset, at=archive.NOW + dt.timedelta(seconds=offset % 2)) for offset in range(20)]
    write(connection, *(taken(offset, letter) for offset, letter in enumerate(letters)))
    redriven = [row for letter in letters[:10] for row in note(letter).redriven]
    with connection.transaction():  # reads the dead letters in several parts
        redrive_notes.settle(connection, [], redriven, now=archive.NOW, max_read_bytes=5000)
    assert len(decoded) == 20
    assert [state for _, state in states(connection)] == ["redriven"] * 10 + ["waiting"] * 10
    assert count_notes(connection) == 0


def test_a_note_of_the_previous_version_has_no_place_and_is_applied(connection):
    row = archive.letter_row(E1)
    asked = {name: getattr(row, name) for name in ("customer_id", "endpoint_id", "webhook_id", "dead_lettered_at")}
    for _ in range(2):
        connection.execute(PUT_NOTE_BEFORE_0035, asked)
    assert count_notes(connection) == 1
    write(connection, taken(0, E1), taken(1, E2))
    assert (states(connection), count_notes(connection)) == ([("e1", "redriven"), ("e2", "waiting")], 0)


@pytest.mark.parametrize("mark", [archived_dead_letters.discard, archived_dead_letters.redrive])
def test_a_discarded_or_requested_letter_is_marked_once(connection, mark):
    write(connection, taken(0, E1))
    [row] = connection.execute("select position from dead_letters").fetchall()
    assert mark(connection, "c1", [row["position"]], now=archive.NOW)
    write(connection, note(E1))
    assert archived_dead_letters.get(connection, "c1", row["position"]).state is LetterState.REDRIVEN
    with turns.claim_page(connection, now=LATER) as turn:
        assert turn == []  # so nobody hands it over a second time


def test_the_note_of_the_archives_redrive_changes_nothing(connection):
    write(connection, taken(0, E1))
    [row] = connection.execute("select position from dead_letters").fetchall()
    archived_dead_letters.redrive(connection, "c1", [row["position"]], now=archive.NOW)
    with turns.claim_page(connection, now=archive.NOW):
        pass
    write(connection, note(E1), now=LATER)
    found = archived_dead_letters.get(connection, "c1", row["position"])
    assert (found.state, found.state_since, count_notes(connection)) == (LetterState.REDRIVEN, archive.NOW, 0)


def test_a_note_that_is_read_again_is_skipped(connection):
    write(connection, note(E1), taken(0, E1))
    connection.execute("update dead_letters set state = 'waiting'")
    write(connection, note(E1))
    assert states(connection) == [("e1", "waiting")]


def test_a_broken_session_applies_each_note_once(connection, opened):
    for number in range(14):
        letter = archive.letter(event_id=f"e{number}")
        records = (taken(number, letter), note(letter, offset=number))
        dying = opened()
        archive.end_session_after(number, dying, connection)
        with contextlib.suppress(errors.RegistryUnavailable):
            write(dying, *records)
        write(connection, *records)
        assert states(connection) == [(f"e{before}", "redriven") for before in range(number + 1)]
    assert count_notes(connection) == 0


def test_a_concurrent_dead_letter_and_its_note_are_matched(connection, opened, in_background):
    first, second = opened(), opened()
    with first.transaction():
        write(first, taken(0, E1))
        late = in_background(lambda: write(second, note(E1)))
        waiting = "select count(*) as n from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        while not connection.execute(waiting).fetchone()["n"]:
            assert not late.done()
    late.result(30)
    assert states(connection) == [("e1", "redriven")]


def test_a_note_without_dead_letter_is_kept_for_the_retention(connection):
    write(connection, note(E1))
    redrive_notes.forget(connection, partitions.day_of(archive.NOW))
    assert count_notes(connection) == 1
    redrive_notes.forget(connection, partitions.day_of(archive.NOW) + dt.timedelta(days=1))
    assert count_notes(connection) == 0
