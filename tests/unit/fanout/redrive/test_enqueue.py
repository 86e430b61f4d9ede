"""The buffer of a redrive keeps the dead letters of a batch until all of them were added."""

from delivery.config import settings
from fanout.kafka.places import Place
from fanout.redrive import enqueue, redrive_plan
from tests.unit.fanout.redrive.test_dead_letters import NOW_MS, letters_of_batch


def enqueuer(letters):
    chosen = [
        redrive_plan.Newest(letter.dead_lettered_at_ms, Place("dead_letters", 0), offset, letter.batch_webhook_id)
        for offset, letter in enumerate(letters)
    ]
    return enqueue.Enqueuer(settings.Settings(), chosen, now_ms=NOW_MS, dry_run=True)


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
