"""The micro-batch that was broken off gets its journal, and so do later ones until all of its records were read."""

import pytest

from delivery.config import settings
from delivery.stages.checkpoint import recovery
from delivery.stages.kafka import completed_reader

KEY = b"k" * 16
ENDS = {"framed": {"0": 5, "1": 3}, "plain": {"0": 9}}


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
    """The lane's micro-batches, whose first one is `found`. It commits `ENDS` when it has run, and so does each later one."""
    monkeypatch.setattr(recovery, "uncommitted", lambda *_: found)
    monkeypatch.setattr(recovery, "ends_of", lambda *_: ENDS)
    monkeypatch.setattr(recovery, "newest", lambda *_: (0, 0))
    made = recovery.Reruns(settings.Settings(), None, "direct")
    made.load()
    return made


def test_the_tasks_of_the_micro_batch_that_was_broken_off_know_what_had_ended(monkeypatch, read):
    made = reruns(monkeypatch, recovery.InterruptedBatch(7, 1000, ENDS))
    assert read == [1000]
    for _ in range(2):  # it is handed back, and begins again
        made.begin(7)
        assert made.work_log.ended(attempt_number=0) == {KEY}
    made.begin(8)
    assert made.work_log.ended(attempt_number=0) == frozenset()
    made.begin(7)
    assert made.work_log.known == frozenset()


def test_a_rerun_that_pauses_topics_keeps_its_journal_until_they_are_read(monkeypatch, read):
    """Regression: the schema registry was away when 7 ran again. When it was back, each delivery of its topic was repeated."""
    made = reruns(monkeypatch, recovery.InterruptedBatch(7, 1000, ENDS))
    monkeypatch.setattr(recovery, "uncommitted", lambda *_: None)

    def next_batch(number, committed, **pausing):
        monkeypatch.setattr(recovery, "ends_of", lambda *_: committed)
        made.begin(number, **pausing)
        return made.work_log.known

    made.begin(7)
    # The positions of the paused topic move out only before the next query.
    assert next_batch(8, ENDS, is_pausing=True) == {KEY}
    assert made.work_log.since_ms > 1000
    monkeypatch.setattr(recovery, "ends_of", lambda *_: {"plain": {"0": 9}})
    made.load()  # this query does not read the topic, and its tasks need no log
    assert next_batch(9, {"plain": {"0": 12}}, is_pausing=True) == frozenset()
    monkeypatch.setattr(recovery, "ends_of", lambda *_: {"framed": {"0": 2, "1": 3}, "plain": {"0": 12}})
    made.load()  # the topic is back, at its first waiting record
    assert next_batch(10, {"framed": {"0": 2, "1": 3}, "plain": {"0": 12}}) == {KEY}
    # A micro-batch need not have room for all waiting records.
    assert next_batch(11, {"framed": {"0": 4, "1": 6}, "plain": {"0": 12}}) == {KEY}
    assert next_batch(12, {"framed": {"0": 5, "1": 6}, "plain": {"0": 12}}) == frozenset()
    assert read == [1000]


@pytest.mark.usefixtures("read")
def test_a_checkpoint_that_cannot_be_read_after_a_rerun_ends_no_lane(monkeypatch, caplog):
    """Regression: the completed-work log only prevents repeats, and its failure stopped all lanes."""
    made = reruns(monkeypatch, recovery.InterruptedBatch(7, 1000, ENDS))
    made.begin(7)

    def fail(*_):
        raise OSError("the store does not answer")

    monkeypatch.setattr(recovery, "ends_of", fail)
    made.begin(8)
    assert made.work_log.known == frozenset()
    assert "could not be read after a micro-batch had run again" in caplog.text


@pytest.mark.usefixtures("read")
def test_a_micro_batch_that_is_broken_off_meanwhile_adds_to_the_journal(monkeypatch):
    made = reruns(monkeypatch, recovery.InterruptedBatch(7, 1000, ENDS))
    made.begin(7)
    monkeypatch.setattr(recovery, "uncommitted", lambda *_: recovery.InterruptedBatch(8, 2000, {"plain": {"0": 12}}))
    monkeypatch.setattr(completed_reader, "read", lambda _: frozenset({b"later"}))
    made.load()
    made.begin(8)
    assert (made.work_log.known, made.work_log.since_ms) == ({KEY, b"later"}, 2000)
    monkeypatch.setattr(recovery, "ends_of", lambda *_: {"plain": {"0": 12}})
    made.begin(9)
    assert made.work_log.known == {KEY, b"later"}
    monkeypatch.setattr(recovery, "ends_of", lambda *_: ENDS | {"plain": {"0": 12}})
    made.begin(10)
    assert made.work_log.known == frozenset()


def test_a_micro_batch_that_is_handed_back_untouched_needs_no_journal(monkeypatch, read):
    """The read took seconds, in each lane, each time that an executor came."""
    made = reruns(monkeypatch, None)
    made.begin(3)
    made.mark_untouched()
    monkeypatch.setattr(recovery, "uncommitted", lambda *_: pytest.fail("the checkpoint is not asked"))
    made.load()
    assert read == []
    monkeypatch.setattr(recovery, "uncommitted", lambda *_: recovery.InterruptedBatch(3, 1000, ENDS))
    made.load()
    assert read == [1000]


def test_an_untouched_micro_batch_keeps_the_completed_work_of_its_first_run(monkeypatch, read):
    made = reruns(monkeypatch, recovery.InterruptedBatch(7, 1000, ENDS))
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
    made = reruns(monkeypatch, recovery.InterruptedBatch(7, 1000, ENDS))
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
