"""Customers see one error class where operators see two: the difference would reveal which internal names exist."""

import orjson

from delivery import errors
from delivery.model import Attempt, Outcome, OutcomeKind
from delivery.webhooks.results import dead_letter_records, log_records, topic_rows
from delivery.webhooks.results.task_results import Results
from subscriptions_db import disclosure
from subscriptions_db.archive.ingest import archived_rows, signals
from tests.support import builders

TOPICS = topic_rows.Topics(attempts="attempts", dead_letters="dead", rejected="rejected", retries="retries")
BOTH = [errors.DnsFailed.error_class, errors.AddressBlocked.error_class]


def written(error_class):
    """Return topic → the record about a delivery that was given up with this error class."""
    attempt = Attempt(1, 1_700_000_000_000, 5.0, None, error_class, detail="the same")
    given_up = Outcome(builders.delivery(), OutcomeKind.DEAD_LETTERED, (attempt,), error_class)
    return {row.topic: row.value for row in topic_rows.rows(Results(outcomes=[given_up]), TOPICS, now_ms=0)}


def test_the_archive_has_one_error_class_where_topics_have_two():
    dns, blocked = map(written, BOTH)
    assert dns["attempts"] != blocked["attempts"]
    letters = [
        archived_rows.dead_letter_row(*dead_letter_records.decode_with_document(rows["dead"])) for rows in (dns, blocked)
    ]
    assert {(row.reason, orjson.loads(row.letter)["attempts"][0]["error_class"]) for row in letters} == {("dns", "dns")}
    attempts = [
        archived_rows.attempt_rows(log_records.decode(rows["attempts"]), letters[0].dead_lettered_at) for rows in (dns, blocked)
    ]
    assert {row.error_class for rows in attempts for row in rows} == {"dns"}
    found = [signals.log_signals(log_records.decode(rows["attempts"]), letters[0].dead_lettered_at) for rows in (dns, blocked)]
    assert found[0] == found[1]


def test_every_other_error_class_is_shown_unchanged():
    assert [disclosure.word(reason) for reason in ("timeout", "tls", None)] == ["timeout", "tls", None]
