"""`fanout dead-letters` finds a dead letter by its name, and closes its connection to Kafka."""

import contextlib

import pytest

from delivery import errors
from delivery.config import settings
from delivery.webhooks.results import dead_letter_records
from fanout.kafka import topic_scanner
from fanout.kafka.places import Place
from fanout.redrive import dead_letter_search, redrive_plan
from fanout.redrive.selection import Selection
from tests.support import records


class Reader:
    """Reads these dead letters, each from a partition of its own."""

    def __init__(self, *letters):
        self._letters = letters

    def redriven(self):
        return redrive_plan.Redriven()

    def extents(self):
        return []

    def read(self, _, take):
        for partition, letter in enumerate(self._letters):
            take(Place("dead_letters", partition), 0, dead_letter_records.encode(letter))


@pytest.mark.parametrize(
    ("times", "newest"),
    [
        pytest.param((20, 10), 0, id="the first partition has the newest"),
        pytest.param((10, 20), 1, id="the last partition has the newest"),
    ],
)
def test_a_webhook_id_names_the_newest_dead_letter_of_all_partitions(times, newest):
    """Regression: `show` had the dead letter of the partition that was read last.

    A subscription that moves to another endpoint may have dead letters in two partitions.
    """
    letters = [records.dead_letter(webhook_id="msg_1", dead_lettered_at_ms=at_ms) for at_ms in times]
    assert dead_letter_search.get(Reader(*letters), "msg_1").place.partition == newest


class Scanner:
    """Finds no topic, or fails to list the topics."""

    def __init__(self, failure):
        self._failure, self.is_open = failure, True

    def names(self):
        if self._failure:
            raise self._failure
        return []

    def close(self):
        self.is_open = False


@pytest.mark.parametrize("failure", [None, errors.KafkaUnavailable("Kafka does not answer")])
def test_a_reader_that_cannot_begin_closes_its_connection(failure, monkeypatch):
    """Regression: the scanner stayed open, because the error came from the constructor of the reader."""
    scanner = Scanner(failure)
    monkeypatch.setattr(topic_scanner, "Scanner", lambda *_: scanner)
    with (
        pytest.raises(errors.FanoutError, match=r"Kafka does not answer|topic fanout\.dead-letters on .* does not exist"),
        dead_letter_search.reading(settings.Settings()),
    ):
        pass
    assert not scanner.is_open


class Log:
    """Topics whose first record has this offset; each has one record."""

    def __init__(self, first_offsets):
        self._first_offsets = first_offsets

    def names(self):
        return list(self._first_offsets)

    def extents(self, names, *, since_ms=None):
        del since_ms
        found = ((name, self._first_offsets[name]) for name in names)
        return [topic_scanner.Extent(place=Place(name, 0), low=low, first=low, end=low + 1) for name, low in found]

    def read(self, extents, name, consume):
        pass


@pytest.mark.parametrize(
    ("attempts", "retries", "is_refused"),
    [
        pytest.param(0, 0, False, id="all notes are in both topics"),
        pytest.param(7, 0, False, id="the attempts topic has expired in part"),
        pytest.param(0, 7, False, id="records of the retries topic were deleted"),
        pytest.param(7, 7, True, id="both topics have lost their oldest records"),
    ],
)
def test_a_redrive_refuses_when_notes_of_earlier_redrives_may_be_gone(attempts, retries, is_refused, monkeypatch):
    """Regression: dead letters that were redriven long ago were enqueued again, for all customers, without a warning."""
    config = settings.Settings()
    names = config.delivery
    log = Log({names.dead_letter_topic: 0, names.attempts_topic: attempts, names.retries_topic: retries})
    monkeypatch.setattr(topic_scanner, "Scanner", lambda *_: log)
    reader = dead_letter_search.DeadLetterReader(config)

    def redrive(**options):
        return dead_letter_search.redrive(config, reader, Selection(), dry_run=True, **options).letters

    with pytest.raises(errors.SettingsError, match="--may-repeat") if is_refused else contextlib.nullcontext():
        redrive()
    assert redrive(may_repeat=True) == 0
