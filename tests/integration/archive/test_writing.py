"""The archive has each record once and unchanged, across crashes and with two processes."""

import base64
import contextlib
import dataclasses
import datetime as dt
import logging
import pathlib
import re
import uuid

import orjson
import psycopg
import pytest
from psycopg import sql

from delivery import errors
from delivery.registry_model import EndpointId
from subscriptions_db.archive.ingest import archived_rows, partitions, redrive_notes, writer
from subscriptions_db.archive.ingest.archived_rows import ArchivedRecord
from subscriptions_db.archive.notifications import key_expiry, outbox, quotas
from subscriptions_db.archive.notifications.endpoint_health import Policy, Signal, SignalKind
from subscriptions_db.archive.search import archived_dead_letters, attempts, records, redrive_requests
from subscriptions_db.archive.search.archive_positions import PageStart
from subscriptions_db.archive.search.selection import DeadLetterSearch
from subscriptions_db.postgres import migrate, stored_answers
from subscriptions_db.registration import registered_rows
from subscriptions_db.replays import progress, requests
from subscriptions_db.snapshot import registry_reader
from tests.support import archive

pytestmark = pytest.mark.integration
EVERYTHING = DeadLetterSearch()
POLICY = Policy(failing_after_s=300, backlog_events=1000, quiet_s=3600)
WAITING = "select count(*) as n from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"


def browse(connection, customer="c1", selection=EVERYTHING, after=0, limit=1000):
    return archived_dead_letters.browse(connection, customer, selection, after=after, limit=limit)


def test_a_dead_letter_comes_back_byte_for_byte(connection):
    strange = bytes(range(256)) * 40
    for offset, payload in enumerate((archive.PAYLOAD, strange, b"")):
        written = archive.letter(data=payload)
        row = archive.letter_row(written)
        writer.write(
            connection, [ArchivedRecord(topic="d", partition=0, offset=offset, letter=row)], archive.KEPT, now=archive.NOW
        )
        [*_, found] = browse(connection).letters
        assert found.payload == payload
        record = orjson.loads(archived_rows.topic_record(found.letter, found.payload))
        assert record == orjson.loads(written)
        assert base64.b64decode(record["payload_base64"]) == payload
        assert archived_dead_letters.get(connection, "c1", found.position) == found


def test_an_unnoticed_commit_is_not_written_again(connection):
    taken = [archive.taken_letter(offset) for offset in range(5)]
    assert writer.write(connection, taken[:3], archive.KEPT, now=archive.NOW).letters == 3
    assert writer.write(connection, taken, archive.KEPT, now=archive.NOW).letters == 2
    assert len(browse(connection).letters) == 5
    assert writer.offsets(connection) == {("dead-letters", 0): 5}


def test_a_crash_before_the_commit_loses_nothing(connection, opened):
    class Killed(Exception):
        pass

    taken = [archive.taken_letter(offset) for offset in range(3)]
    dying = opened()
    with contextlib.suppress(Killed), dying.transaction():
        writer.write(dying, taken, archive.KEPT, now=archive.NOW)
        raise Killed
    assert (browse(connection).letters, writer.offsets(connection)) == ([], {})
    assert writer.write(connection, taken, archive.KEPT, now=archive.NOW).letters == 3


def test_a_broken_session_leaves_each_record_once(connection, opened):
    """The session breaks before the n-th statement, for every n. The next process begins at the archived offsets."""
    for number in range(12):
        taken = [archive.taken_letter(10 * number + offset) for offset in range(4)]
        dying = opened()
        has_ended = archive.end_session_after(number, dying, connection)
        try:
            writer.write(dying, taken, archive.KEPT, now=archive.NOW)
        except errors.RegistryUnavailable:
            assert has_ended()
        writer.write(connection, taken, archive.KEPT, now=archive.NOW)
        found = connection.execute("select letter_offset from dead_letters order by 1").fetchall()
        wanted = [10 * before + offset for before in range(number + 1) for offset in range(4)]
        assert [row["letter_offset"] for row in found] == wanted


def test_two_processes_write_the_same_records_once(connection, opened, in_background):
    taken = [archive.taken_letter(offset) for offset in range(20)]
    first, second = opened(), opened()
    with first.transaction():
        writer.write(first, taken[:10], archive.KEPT, now=archive.NOW)
        late = in_background(lambda: writer.write(second, taken, archive.KEPT, now=archive.NOW))
    assert late.result(30).letters == 10
    assert len(browse(connection).letters) == 20


def test_a_record_that_postgres_refuses_blocks_no_other(connection, caplog):
    taken = [archive.taken_letter(offset) for offset in range(3)]
    object.__setattr__(taken[1].letter, "tenant_id", "not an id")
    with caplog.at_level(logging.WARNING):
        written = writer.write(connection, taken, archive.KEPT, now=archive.NOW)
    assert (written.letters, written.refused) == (2, 1)
    assert "dead-letters:0:1 is left out" in caplog.text
    assert writer.write(connection, taken, archive.KEPT, now=archive.NOW) == writer.Written()


def test_the_longest_names_fit_into_the_indexes(connection):
    ids = {"customer": "c" * 128, "endpoint": "e" * 128, "tenant_id": "t" * 128}
    long = archive.taken_letter(0, **ids, reason="r" * 100, event_type="\U0001f600" * 10_000)
    assert writer.write(connection, [long], archive.KEPT, now=archive.NOW).refused == 0
    record = archive.taken_attempts(1, archive.outcome(**ids, event_type="\U0001f600" * 10_000))
    assert writer.write(connection, [record], archive.KEPT, now=archive.NOW).attempts == 1


def test_a_cursor_never_skips_a_letter_that_commits_later(connection, opened, in_background):
    """The slow writer draws its positions first. A second writer must wait until the slow writer has committed."""
    slow, fast = opened(), opened()
    partitions.create(connection, "dead_letters", archive.NOW.date())
    with slow.transaction():
        writer.write(slow, [archive.taken_letter(0, event_type="slow")], archive.KEPT, now=archive.NOW)
        late = in_background(
            lambda: writer.write(fast, [archive.taken_letter(0, partition=1, event_type="fast")], archive.KEPT, now=archive.NOW)
        )
        while not connection.execute(WAITING).fetchone()["n"]:
            assert not late.done()
        page = browse(connection)
        assert (page.letters, page.until, page.has_more) == ([], 0, False)
    late.result(30)
    page = browse(connection, after=page.until)
    assert [orjson.loads(letter.letter)["event_type"] for letter in page.letters] == ["slow", "fast"]


def test_a_clock_set_back_over_midnight_hides_no_letter(connection, write):
    midnight = archive.NOW.replace(hour=0)
    write(1, now=midnight)
    at = browse(connection).until
    write(1, now=midnight - dt.timedelta(seconds=1))
    assert len(browse(connection, after=at).letters) == 1


def test_partitions_are_created_ahead_and_dropped_after_retention(connection, write):
    today = archive.NOW.date()
    for day in partitions.coming(today):
        assert partitions.create(connection, "dead_letters", day)
        assert not partitions.create(connection, "dead_letters", day)
    write(1)
    write(1, now=archive.NOW + dt.timedelta(days=1))
    later = today + dt.timedelta(days=31)
    assert partitions.drop(connection, "dead_letters", partitions.oldest(later, 30)) == ["dead_letters_20260510"]
    assert len(browse(connection).letters) == 1


def test_creating_a_partition_waits_for_no_reader_dropping_yields(connection, opened, write):
    write(1)
    reader = opened()
    with reader.transaction():
        assert len(browse(reader).letters) == 1
        assert partitions.create(connection, "dead_letters", archive.NOW.date() + dt.timedelta(days=1))
        assert partitions.drop(connection, "dead_letters", dt.date(2100, 1, 1)) == []
        assert len(browse(connection).letters) == 1
    assert len(partitions.drop(connection, "dead_letters", dt.date(2100, 1, 1))) == 2


def test_attempts_are_found_by_search_criteria_newest_first(connection):
    minutes = [archive.NOW - dt.timedelta(minutes=n) for n in range(30)]
    outcomes = [
        archive.outcome(at=at, endpoint=f"ep{n % 3}", event_type="order.created" if n % 2 else "user.created")
        for n, at in enumerate(minutes)
    ]
    writer.write(connection, [archive.taken_attempts(0, *outcomes)], archive.KEPT, now=archive.NOW)

    def found(limit=100, start=records.NEWEST, **asked):
        return attempts.search(connection, "c1", attempts.AttemptSearch(**asked), start=start, limit=limit)

    assert [attempt.started_at for attempt in found().attempts] == minutes
    assert [attempt.started_at for attempt in found(endpoint_id="ep1", event_type="order.*").attempts] == minutes[1::6]
    assert [attempt.started_at for attempt in found(since=minutes[5], until=minutes[2]).attempts] == minutes[3:6]
    assert found(status=500, error_class="server_error", is_accepted=False).attempts == found().attempts
    assert found(is_accepted=True) == found(status=200) == attempts.FoundAttempts([], None)
    assert attempts.search(connection, "c2", attempts.AttemptSearch(), limit=1).attempts == []

    paged, start = [], records.NEWEST
    while (page := found(limit=7, start=start)).further:
        paged += page.attempts
        start = PageStart(page.further)
    assert [attempt.started_at for attempt in paged + page.attempts] == minutes


def test_a_rare_attempt_is_found_over_several_pages(connection):
    outcomes = [archive.outcome(at=archive.NOW - dt.timedelta(seconds=n), event_type=f"t{n}") for n in range(35)]
    writer.write(connection, [archive.taken_attempts(0, *outcomes)], archive.KEPT, now=archive.NOW)
    pages, start = 0, records.NEWEST
    asked = attempts.AttemptSearch(event_type="t34")
    while not (page := attempts.search(connection, "c1", asked, start=start, limit=5, most=10)).attempts:
        pages, start = pages + 1, PageStart(page.further)
    assert (pages, [attempt.event_type for attempt in page.attempts]) == (3, ["t34"])


def test_attempts_too_old_or_too_far_ahead_are_left_out(connection):
    outcomes = [archive.outcome(at=archive.NOW + dt.timedelta(days=n)) for n in (-8, -7, 0, 2, 3)]
    written = writer.write(connection, [archive.taken_attempts(0, *outcomes)], archive.KEPT, now=archive.NOW)
    assert (written.attempts, written.expired) == (3, 2)


def test_a_recreated_topic_begins_at_offset_zero(connection, write):
    write(3)
    writer.restart_partition(connection, ("dead-letters", 0), 2, 0)  # somebody else has gone on meanwhile
    assert writer.offsets(connection) == {("dead-letters", 0): 3}
    writer.restart_partition(connection, ("dead-letters", 0), 3, 0)
    assert writer.write(connection, [archive.taken_letter(0)], archive.KEPT, now=archive.NOW).letters == 1


def test_a_recreated_topic_begins_at_its_first_record(connection, write):
    """Regression: it began at offset 0, and the records that Kafka had deleted before were reported lost at each start."""
    write(9)
    writer.restart_partition(connection, ("dead-letters", 0), 9, 5)
    assert writer.offsets(connection) == {("dead-letters", 0): 5}
    assert writer.write(connection, [archive.taken_letter(5)], archive.KEPT, now=archive.NOW).letters == 1


def test_lost_records_are_skipped_unless_another_process_has_gone_on(connection, write):
    write(3)
    writer.skip_lost(connection, ("dead-letters", 0), 2, 7)
    assert writer.offsets(connection) == {("dead-letters", 0): 3}
    writer.skip_lost(connection, ("dead-letters", 0), 3, 7)
    assert writer.offsets(connection) == {("dead-letters", 0): 7}
    assert writer.write(connection, [archive.taken_letter(7)], archive.KEPT, now=archive.NOW).letters == 1


def places(connection):
    asked = "select letter_offset, letter_incarnation as n from dead_letters order by position"
    return [(row["letter_offset"], row["n"]) for row in connection.execute(asked)]


def test_a_recreated_topic_may_repeat_offsets_of_the_same_day(connection, write):
    write(2)
    writer.restart_partition(connection, ("dead-letters", 0), 2, 0)
    again = [archive.taken_letter(offset) for offset in range(2)]
    assert writer.write(connection, again, archive.KEPT, now=archive.NOW).letters == 2
    assert places(connection) == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_postgres_refuses_a_dead_letter_archived_twice(connection, write):
    write(2)
    connection.execute("update archive_offsets set next_offset = 1")  # as no code of ours does
    taken = [archive.taken_letter(offset) for offset in (1, 2)]
    written = writer.write(connection, taken, archive.KEPT, now=archive.NOW)
    assert (written.letters, written.refused) == (1, 1)
    assert places(connection) == [(0, 0), (1, 0), (2, 0)]
    assert writer.offsets(connection) == {("dead-letters", 0): 3}


def test_customers_see_only_their_own_rows(connection, write):
    write(2, customer="c1")
    write(3, customer="c2")
    record = archive.taken_attempts(0, archive.outcome(customer="c1"), archive.outcome(customer="c2", endpoint="ep2"))
    writer.write(connection, [record], archive.KEPT, now=archive.NOW)
    counts = {}
    for customer in ("c1", "c2", ""):
        with connection.transaction():
            connection.execute("set local role fanout_api")
            connection.execute("select set_config('fanout.customer_id', %s, true)", [customer])
            for table in ("dead_letters", "attempts"):
                counted = sql.SQL("select count(*) as n from {}").format(sql.Identifier(table))
                counts[customer, table] = connection.execute(counted).fetchone()["n"]
            assert browse(connection, "c2" if customer == "c1" else "c1").letters == []
    assert counts == {
        ("c1", "dead_letters"): 2, ("c2", "dead_letters"): 3, ("", "dead_letters"): 0,
        ("c1", "attempts"): 1, ("c2", "attempts"): 1, ("", "attempts"): 0,
    }  # fmt: skip


def test_a_customer_can_change_only_the_state_of_a_dead_letter(connection, write):
    write(1)
    connection.execute("set role fanout_api")
    connection.execute("select set_config('fanout.customer_id', 'c1', false)")
    for statement in (
        "update dead_letters set payload = ''",
        "delete from dead_letters",
        "insert into archive_offsets values ('d', 0)",
        "select make_archive_day('attempts', '2026-01-01')",
        "select * from dead_letters_20260510",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(statement)
    connection.execute("reset role")


def test_two_processes_create_a_partition_once(connection, opened, in_background):
    first, second = opened(), opened()
    with first.transaction():
        assert partitions.create(first, "attempts", archive.NOW.date())
        late = in_background(lambda: partitions.create(second, "attempts", archive.NOW.date()))
        while not connection.execute(WAITING).fetchone()["n"]:
            assert not late.done()
    assert late.result(30) is False


def carry_out_replays(connection):
    """Make every change to replays that `fanout archive` makes in Postgres."""
    assert registry_reader.read_routes(connection, EndpointId("ep1")).endpoints == {}
    assert registered_rows.revision(connection) >= 0
    [replay] = progress.resumable(connection, max_pending=1)
    with progress.locked(connection, replay) as held:
        progress.begin(connection, held, [progress.PartitionProgress("orders", 0, 3, 9)], is_whole=True, now=archive.NOW)
        reached = progress.next_partition(connection, held)._replace(next_offset=9)
        progress.advance(connection, held, reached, is_lost=False, records=6, handed_over=0)
        progress.end(connection, held, requests.ReplayState.DONE, now=archive.NOW)
    progress.add_counts(connection, [progress.ReplayCounts(replay.replay_id, skipped=1)])
    assert progress.forget(connection, before=archive.NOW + dt.timedelta(days=1)) == 1


def test_the_documented_grants_are_enough_to_archive(connection):
    """The grants of docs/operations.md are given to a role that owns nothing and bypasses no policy."""
    text = (pathlib.Path(__file__).parents[3] / "docs" / "operations.md").read_text()
    [grants] = [block for block in re.findall(r"```sql\n(.*?)```", text, re.DOTALL) if "archive_offsets" in block]
    requests.ask(connection, "c1", "ep1", requests.ReplayRange(since=archive.NOW, until=archive.NOW + dt.timedelta(days=1)))
    role = f"archive_{uuid.uuid4().hex[:8]}"
    connection.execute(sql.SQL("create role {}").format(sql.Identifier(role)))
    for grant in grants.replace("fanout_archive", role).split(";")[:-1]:
        connection.execute(grant)
    connection.execute(sql.SQL("set role {}").format(sql.Identifier(role)))
    migrate.require_current(connection)
    delivery = {"customer_id": "c1", "endpoint_id": "ep1", "webhook_id": "msg_1", "dead_lettered_at": archive.NOW}
    redriven = [archived_rows.RedrivenRow(**delivery, topic="events.a", partition=0, offset=0)]
    record = dataclasses.replace(archive.taken_attempts(0, archive.outcome()), redriven=redriven)
    written = writer.write(connection, [archive.taken_letter(0), record], archive.KEPT, now=archive.NOW)
    assert (written.letters, written.attempts) == (1, 1)
    redrive_notes.forget(connection, dt.date(2100, 1, 1))
    [found] = browse(connection).letters
    assert archived_dead_letters.redrive(connection, "c1", [found.position], now=archive.NOW)
    with redrive_requests.claim_page(connection, now=archive.NOW, in_turn=True) as turn:
        assert len(turn) == 1
    with redrive_requests.claim_page(connection, now=archive.NOW) as turn:
        assert turn == []
    outbox.record(connection, [Signal("ep1", "c1", SignalKind.DEAD_LETTER, archive.NOW)], POLICY)
    outbox.record_due(connection, POLICY, now=archive.NOW)
    outbox.delete_orphans(connection)
    key_expiry.record(connection, POLICY, now=archive.NOW)
    for most in (1, 2):  # the quota of dead letters is reached, and then it is not
        quotas.record(connection, quotas.DefaultQuotas(1, 1, 1, most, 1), None, now=archive.NOW)
    with outbox.claim_page(connection) as waiting:
        assert len(waiting) == 1
    assert partitions.drop(connection, "attempts", dt.date(2100, 1, 1))
    carry_out_replays(connection)
    stored_answers.delete_remaining(connection)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("select answer from idempotency_keys")
    connection.execute("reset role")
    connection.execute(sql.SQL("drop owned by {0}; drop role {0}").format(sql.Identifier(role)))
