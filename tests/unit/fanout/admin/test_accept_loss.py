"""`fanout accept-loss` finds the lost records of paused topics too, and changes nothing without `--yes`. Without Spark."""

import contextlib
import json
import time

import pytest

from delivery import errors
from delivery.config import settings
from delivery.stages.checkpoint import losses, offset_log, paused_topics, recovery
from delivery.stages.checkpoint_lock import lock
from delivery.stages.kafka import completed_reader
from delivery.stages.lanes import session
from fanout.admin import accept_loss
from fanout.kafka import topic_scanner
from fanout.kafka.places import Place
from subscriptions_db.postgres import audit_entries, connect

CONFIG = settings.Settings.model_validate({"spark": {"checkpoint": "/c"}})
TOPIC = "events.framed"
OFFSETS = f'v1\n{{}}\n{{"events.plain":{{"0":7}},"{TOPIC}":{{"0":9}}}}'
PAUSED = json.dumps({TOPIC: paused_topics.PausedTopic(7, {"0": 2})})
"""Partition 0 waits at offset 2. A crash before the offset log changed has left the later position 9 there."""


HIDDEN = {"events.hidden"}
"""Topics that this login may not describe."""


class Scanner:
    """Kafka deleted the records of the paused topic before offset 4."""

    def __init__(self, _):
        self.close = lambda: None

    def names(self):
        return ["events.plain", TOPIC]

    def require_visible(self, names):
        if hidden := HIDDEN & set(names):
            raise errors.KafkaUnavailable(f"this login may not describe {min(hidden)}")

    def extents(self, names):
        lows = {"events.plain": 0, TOPIC: 4}
        return [
            topic_scanner.Extent(place=Place(name, 0), low=lows[name], first=lows[name], end=12)
            for name in names
            if name in lows
        ]


class NoLock:
    def __init__(self, *_):
        pass

    def acquired(self, *_, **__):
        return contextlib.nullcontext()


@pytest.fixture
def files(monkeypatch):
    """The files of the checkpoint, by name: micro-batch 7 is committed."""
    held = {"/c/direct/offsets/7": OFFSETS, "/c/direct/paused-topics.json": PAUSED}
    monkeypatch.setattr(lock, "Lock", NoLock)
    monkeypatch.setattr(session, "running", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(topic_scanner, "Scanner", Scanner)
    monkeypatch.setattr(recovery, "require_whole", lambda *_: None)
    monkeypatch.setattr(recovery, "newest", lambda *_: (7, 7))
    monkeypatch.setattr(offset_log, "read", lambda _, name: held.get(name))
    monkeypatch.setattr(offset_log, "write", lambda _, name, text: held.__setitem__(name, text))
    monkeypatch.setattr(offset_log, "delete", lambda _, name: held.pop(name, None))
    return held


LOST = [("direct", losses.Loss(TOPIC, 0, losses.LossReason.EXPIRED, 2, 3))]


def test_a_dry_run_names_the_loss_of_a_paused_topic_and_changes_no_file(files):
    """Regression: the dry run rewrote the offset log, and deleted the file of paused topics."""
    before = dict(files)
    assert accept_loss.accept(CONFIG, None, ["direct"], is_dry=True) == LOST
    assert files == before


def test_an_accepted_loss_of_a_paused_topic_moves_it_past_the_loss(files, monkeypatch):
    noted = []
    monkeypatch.setattr(connect, "connect", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(audit_entries, "note_many", lambda _, entries: noted.extend(entries))
    assert accept_loss.accept(CONFIG, None, ["direct"], is_dry=False) == LOST
    assert len(noted) == 1
    assert files == {"/c/direct/offsets/7": OFFSETS.replace("9", "4")}


def test_an_interrupted_micro_batch_names_each_partition_of_the_positions(files, monkeypatch):
    """Regression: an accepted loss left a lane that never started again.

    The interrupted micro-batch lacked a topic that was new and had lost its first records. The new positions had the topic,
    so Spark took its partitions for deleted at each start.
    """
    files.clear()
    files["/c/direct/offsets/7"] = 'v1\n{}\n{"events.plain":{"0":7}}'
    files["/c/direct/offsets/8"] = 'v1\n{}\n{"events.plain":{"0":9}}'
    monkeypatch.setattr(recovery, "newest", lambda *_: (8, 7))
    monkeypatch.setattr(connect, "connect", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(audit_entries, "note_many", lambda *_: None)
    accept_loss.accept(CONFIG, None, ["direct"], is_dry=False)
    ends = {name: json.loads(text.splitlines()[-1]) for name, text in files.items() if "offsets" in name}
    assert ends == {
        "/c/direct/offsets/7": {"events.plain": {"0": 7}, TOPIC: {"0": 4}},
        "/c/direct/offsets/8": {"events.plain": {"0": 9}, TOPIC: {"0": 4}},
    }


def test_a_topic_that_this_login_may_not_describe_is_no_loss(files):
    """Regression: it counted as deleted, and its position was lost: all of it was sent again when the right came back."""
    files["/c/direct/offsets/7"] = 'v1\n{}\n{"events.plain":{"0":7},"events.hidden":{"0":3}}'
    before = dict(files)
    with pytest.raises(errors.KafkaUnavailable, match=r"may not describe events\.hidden"):
        accept_loss.accept(CONFIG, None, ["direct"], is_dry=True)
    assert files == before


def test_a_topic_that_the_pattern_had_left_out_is_no_loss_before_its_position(files, monkeypatch):
    """Regression: records that were delivered counted as lost, and later ones were delivered again."""
    del files["/c/direct/paused-topics.json"]
    files["/c/direct/offsets/7"] = 'v1\n{}\n{"events.plain":{"0":7}}'
    files["/c/direct/left-out-topics.json"] = json.dumps({TOPIC: {"0": 9}})
    assert accept_loss.accept(CONFIG, None, ["direct"], is_dry=True) == []
    monkeypatch.setattr(connect, "connect", lambda _: contextlib.nullcontext())
    assert accept_loss.accept(CONFIG, None, ["direct"], is_dry=False) == []
    assert files == {"/c/direct/offsets/7": OFFSETS}


@pytest.mark.parametrize(("position", "is_set"), [(20, True), (2, False)], ids=["ends before", "expired"])
def test_a_position_that_goes_back_makes_earlier_receipts_void(files, monkeypatch, position, is_set):
    """Regression: receipts of the last micro-batch moved the real-time lane past the records of a recreated topic."""
    del files["/c/direct/paused-topics.json"]
    files["/c/direct/offsets/7"] = f'v1\n{{"batchTimestampMs":1,"batchWatermarkMs":0}}\n{{"{TOPIC}":{{"0":{position}}}}}'
    monkeypatch.setattr(connect, "connect", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(audit_entries, "note_many", lambda *_: None)
    files["/c/direct/offsets/8"] = files["/c/direct/offsets/7"]
    monkeypatch.setattr(recovery, "newest", lambda *_: (8, 7))
    before_ms = time.time() * 1000
    accept_loss.accept(CONFIG, None, ["direct"], is_dry=False)
    assert json.loads(files["/c/direct/offsets/7"].splitlines()[2])[TOPIC] == {"0": 4}
    for number in (7, 8):  # the interrupted micro-batch too: its log of completed work named the old records
        began_ms = json.loads(files[f"/c/direct/offsets/{number}"].splitlines()[1])["batchTimestampMs"]
        assert (began_ms - completed_reader.SLACK_MS >= int(before_ms)) is is_set
        assert is_set or began_ms == 1
