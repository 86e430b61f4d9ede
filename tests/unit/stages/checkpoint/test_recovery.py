"""The micro-batch that was broken off gets its journal, and no other does."""

import pytest

from delivery.config import settings
from delivery.stages.checkpoint import recovery
from delivery.stages.kafka import completed_reader

KEY = b"k" * 16


@pytest.fixture
def read(monkeypatch):
    """The times from which completed work is read."""
    asked = []

    def fake(of):
        asked.append(of.since_ms)
        return frozenset({KEY})

    monkeypatch.setattr(completed_reader, "read", fake)
    return asked


def reruns(monkeypatch, found):
    monkeypatch.setattr(recovery, "uncommitted", lambda *_: found)
    made = recovery.Reruns(settings.Settings(), None, "direct")
    made.load()
    return made


def test_the_tasks_of_the_micro_batch_that_was_broken_off_know_what_had_ended(monkeypatch, read):
    made = reruns(monkeypatch, recovery.InterruptedBatch(7, 1000))
    assert read == [1000]
    for _ in range(2):  # it is handed back, and begins again
        made.begin(7)
        assert made.work_log.ended(attempt_number=0) == {KEY}
    made.begin(8)
    assert made.work_log.ended(attempt_number=0) == frozenset()
    made.begin(7)
    assert made.work_log.known == frozenset()


def test_a_micro_batch_that_is_handed_back_untouched_needs_no_journal(monkeypatch, read):
    """The read took seconds, in each lane, each time that an executor came."""
    made = reruns(monkeypatch, None)
    made.begin(3)
    made.mark_untouched()
    monkeypatch.setattr(recovery, "uncommitted", lambda *_: pytest.fail("the checkpoint is not asked"))
    made.load()
    assert read == []
    monkeypatch.setattr(recovery, "uncommitted", lambda *_: recovery.InterruptedBatch(3, 1000))
    made.load()
    assert read == [1000]


def test_an_untouched_micro_batch_keeps_the_completed_work_of_its_first_run(monkeypatch, read):
    made = reruns(monkeypatch, recovery.InterruptedBatch(7, 1000))
    made.begin(7)
    made.mark_untouched()
    made.load()
    made.begin(7)
    assert (made.work_log.ended(attempt_number=0), read) == ({KEY}, [1000])


def test_where_nothing_was_broken_off_nothing_is_read_until_a_task_runs_again(monkeypatch, read):
    made = reruns(monkeypatch, None)
    made.begin(0)
    assert (made.work_log.ended(attempt_number=0), read) == (frozenset(), [])
    assert (made.work_log.ended(attempt_number=1), read) == ({KEY}, [made.work_log.since_ms])


def test_a_retried_task_of_a_rerun_micro_batch_reads_from_the_first_start(monkeypatch, read):
    made = reruns(monkeypatch, recovery.InterruptedBatch(7, 1000))
    made.begin(7)
    made.work_log.ended(attempt_number=1)
    assert read == [1000, 1000]


@pytest.mark.usefixtures("read")
def test_a_checkpoint_that_cannot_be_read_is_left_to_spark(monkeypatch, caplog):
    def fail(*_):
        raise OSError("no such disk")

    monkeypatch.setattr(recovery, "uncommitted", fail)
    made = recovery.Reruns(settings.Settings(), None, "direct")
    made.load()
    assert made.work_log.known == frozenset()
    assert "all of its deliveries are sent again" in caplog.text


def test_a_journal_does_not_show_the_password_of_kafka():
    made = recovery.Reruns(settings.Settings(kafka={"sasl_mechanism": "PLAIN", "sasl_password": "hunter2"}), None, "direct")
    assert "hunter2" in str(made.work_log.client)
    assert "hunter2" not in repr(made.work_log)
