"""Customers read one word where operators tell two failures apart: which internal names exist is not theirs to know."""

import orjson

from delivery import errors
from delivery.model import Attempt, Outcome, OutcomeKind
from delivery.webhooks.results import dead_letter_records, log_records, topic_rows
from delivery.webhooks.results.results import Results
from subscriptions_db import disclosure
from subscriptions_db.archive.ingest import archived_rows, signals
from tests.support import builders

TOPICS = topic_rows.Topics(attempts="attempts", dead_letters="dead", rejected="rejected", retries="retries")
BOTH = [errors.DnsFailed.error_class, errors.AddressBlocked.error_class]


def written(error_class):
    """The rows of the topics for a delivery that was given up by this."""
    attempt = Attempt(1, 1_700_000_000_000, 5.0, None, error_class, detail="the same")
    given_up = Outcome(builders.delivery(), OutcomeKind.DEAD_LETTERED, (attempt,), error_class)
    return {row.topic: row.value for row in topic_rows.rows(Results(outcomes=[given_up]), TOPICS)}


def test_the_archive_has_one_word_and_the_topics_have_two():
    dns, blocked = map(written, BOTH)
    assert dns["attempts"] != blocked["attempts"]
    letters = [archived_rows.dead_letter_row(*dead_letter_records.decode_with_document(one["dead"])) for one in (dns, blocked)]
    assert {(one.reason, orjson.loads(one.letter)["attempts"][0]["error_class"]) for one in letters} == {("dns", "dns")}
    attempts = [
        archived_rows.attempt_rows(log_records.decode(one["attempts"]), letters[0].dead_lettered_at) for one in (dns, blocked)
    ]
    assert {one.error_class for found in attempts for one in found} == {"dns"}
    told = [signals.log_signals(log_records.decode(one["attempts"]), letters[0].dead_lettered_at) for one in (dns, blocked)]
    assert told[0] == told[1]


def test_every_other_word_is_shown_as_it_is():
    assert [disclosure.word(one) for one in ("timeout", "tls", None)] == ["timeout", "tls", None]
