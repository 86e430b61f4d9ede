"""The buffer of a redrive keeps the dead letters of a batch until all of them were added."""

import itertools

import msgspec
import pytest

from delivery.config import settings
from delivery.webhooks.batching import segment
from delivery.webhooks.results import log_records
from delivery.webhooks.retries import retry_messages
from fanout.kafka import publishing
from fanout.kafka.places import Place
from fanout.reconcile import evidence
from fanout.redrive import enqueue, redrive_plan
from tests.support import publishers
from tests.unit.fanout.redrive.test_dead_letter_search import NOW_MS, letters_of_batch
from tests.unit.fanout.redrive.test_dead_letter_search import letter as direct_letter


def enqueuer(letters, *, dry_run=True):
    chosen = [
        redrive_plan.Newest(letter.dead_lettered_at_ms, (Place("dead_letters", 0), offset), redrive_plan.batch_of(letter), "")
        for offset, letter in enumerate(letters)
    ]
    return enqueue.Enqueuer(settings.Settings(), chosen, now_ms=NOW_MS, dry_run=dry_run)


def test_the_dead_letters_of_a_batch_share_a_request():
    _, letters = letters_of_batch(0, 1, 2, 3)
    redrive = enqueuer(letters)
    for letter in letters:
        redrive.add(letter)
    redrive.finish()
    assert (redrive.summary.letters, redrive.summary.requests) == (4, 1)


def test_a_batch_goes_without_a_dead_letter_that_expired_meanwhile():
    """Kafka may delete a chosen dead letter between the two reads of its topic."""
    _, letters = letters_of_batch(0, 1, 2, 3)
    redrive = enqueuer(letters)
    for letter in letters[:3]:
        redrive.add(letter)
    redrive.finish()
    assert (redrive.summary.letters, redrive.summary.requests) == (3, 1)


@pytest.fixture
def publisher(monkeypatch):
    """Enqueuers publish to a list."""
    monkeypatch.setattr(publishing, "Publisher", publishers.Publisher)


def enqueued(letters):
    """Enqueue dead letters; return the records of the retries topic and of the attempts topic."""
    redrive, topics = enqueuer(letters, dry_run=False), settings.Settings().delivery
    for dead_letter in letters:
        redrive.add(dead_letter)
    redrive.finish()
    published = redrive._publisher.published
    return [
        [message.value for message in published if message.topic == name]
        for name in (topics.retries_topic, topics.attempts_topic)
    ]


@pytest.mark.usefixtures("publisher")
@pytest.mark.parametrize("is_batch_first", [False, True])
def test_dead_letters_of_both_modes_of_an_endpoint_count_as_redriven(is_batch_first):
    """Regression: `fanout reconcile` reported a contradiction for an endpoint whose mode had changed.

    Both modes shared a record, and its note had the mode of the first dead letter only.
    """
    batch = letters_of_batch(0, 1, 2, 3)[1]
    letters = [*batch, direct_letter(7)] if is_batch_first else [direct_letter(7), *batch]
    assert len({dead_letter.endpoint_id for dead_letter in letters}) == 1
    found = evidence.Evidence()
    for note in enqueued(letters)[1]:
        found.add_log_record(log_records.decode(note), NOW_MS)
    for dead_letter in letters:
        found.add_dead_letter(dead_letter)
    [place] = found.places()
    assert list(itertools.chain(*(states for *_, states in found.statements(place)))) == [evidence.REDRIVEN] * 5


@pytest.mark.usefixtures("publisher")
def test_dead_letters_of_two_customers_of_an_endpoint_id_share_no_record():
    """Regression: one record had both, under the first customer. The other's was skipped, or sent to the wrong customer."""
    mine = direct_letter(1)
    records, notes = enqueued([mine, msgspec.structs.replace(mine, customer_id="c2", offset=2)])
    assert [retry_messages.message(record).customer_id for record in records] == ["c1", "c2"]
    assert [log_records.decode(note).customer_id for note in notes] == ["c1", "c2"]


@pytest.mark.usefixtures("publisher")
@pytest.mark.parametrize("is_replay_first", [False, True])
def test_a_replayed_batch_shares_no_request_with_the_batch_itself(is_replay_first):
    """Regression: `fanout reconcile` called a redriven delivery lost, or the replay's count never ended.

    The response to a batch rejected one event, and the response to its replay another one. Both dead letters name one batch,
    and went in one retry entry, with the replay of the first.
    """
    due, other = letters_of_batch(0, 1, 2, 3)[1][:2]
    letters = [due, msgspec.structs.replace(other, replay="rpl_1")]
    redriven, found = enqueued(letters[::-1] if is_replay_first else letters), evidence.Evidence()
    entries = [entry for value in redriven[0] for entry in retry_messages.message(value).entries]
    offset_of = {entry.replay: [segment.unpacked(packed).offset for packed in entry.packed] for entry in entries}
    assert offset_of == {None: [due.offset], "rpl_1": [other.offset]}
    for value in redriven[0]:
        found.add_retry_message(retry_messages.message(value))
    [(offset, _, [state])] = found.statements(Place(due.topic, due.partition))
    assert (offset, state >= evidence.ENQUEUED) == (due.offset, True)


@pytest.mark.usefixtures("publisher")
def test_events_of_two_customers_share_no_request_of_a_batch():
    letters = [
        msgspec.structs.replace(dead_letter, customer_id=f"c{number % 2}")
        for number, dead_letter in enumerate(letters_of_batch(0, 1, 2, 3)[1])
    ]
    records, _ = enqueued(letters)
    assert [retry_messages.message(record).customer_id for record in records] == ["c0", "c1"]
