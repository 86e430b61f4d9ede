"""Topics move between the direct and the real-time lane after all checks, with their receipts, and back without a pattern."""

import fcntl
import functools
import threading
import types

import pytest

from delivery import errors, job_lanes
from delivery.config import settings
from delivery.stages.checkpoint import left_out_topics, offset_log, paused_topics
from delivery.stages.kafka import completed_reader
from delivery.stages.realtime import slots, start_offsets, topic_moves
from tests.spark.test_realtime import committed, config_with, contents, moved

pytestmark = pytest.mark.spark


@pytest.fixture
def received(monkeypatch):
    """Put receipts into the attempts topic: for each topic, the first and the last offset of its partition 0."""
    receipts = {}
    monkeypatch.setattr(
        start_offsets,
        "_receipts_patiently",
        lambda _, of, __: ({place: ranges for place, ranges in receipts.items() if of(place[0])}, 1),
    )
    monkeypatch.setattr(
        start_offsets,
        "_starts_of_newer",
        lambda _, newer, __: ({place: start_offsets.handled_up_to(0, ranges) for place, ranges in newer.items()}, False),
    )
    monkeypatch.setattr(completed_reader, "read", lambda *_: frozenset())
    return lambda **ranges: receipts.update(
        {(topic, 0): [start_offsets.HandledRange(*offsets)] for topic, offsets in ranges.items()}
    )


def positions(spark, folder):
    return offset_log.Checkpoint(spark, str(folder)).positions


def test_a_topic_newer_than_the_last_commit_leaves_at_its_receipts(spark, tmp_path, received):
    """Regression: only committed positions moved, so the direct lane delivered the topic again from its first record."""
    received(other=(3, 9), new=(0, 99), slow=(0, 8))
    committed(tmp_path / "direct", '{"slow":{"0":7}}')
    committed(tmp_path / "realtime", '{"other":{"0":3}}')
    moved(spark, tmp_path, "other", existing=["slow", "other", "new", "empty"])
    assert positions(spark, tmp_path / "direct") == {"slow": {"0": 7}, "new": {"0": 100}}
    assert positions(spark, tmp_path / "realtime") == {"other": {"0": 3}}


def test_a_newer_topic_of_another_topic_pattern_does_not_move(spark, tmp_path, received):
    received(new=(0, 99))
    committed(tmp_path / "direct", '{"slow":{"0":7}}')
    committed(tmp_path / "realtime", '{"other":{"0":3}}')
    moved(spark, tmp_path, "other", topic_pattern="slow|other", existing=["slow", "other", "new"])
    assert positions(spark, tmp_path / "direct") == {"slow": {"0": 7}}


def test_a_direct_lane_alone_does_not_start_a_newer_topic_again(spark, tmp_path, received):
    received(new=(0, 99))
    committed(tmp_path / "direct", '{"slow":{"0":7}}')
    committed(tmp_path / "realtime", '{"other":{"0":3}}')
    before = contents(tmp_path)
    with pytest.raises(errors.SettingsError, match=r"moves new between .* name both lanes in one job once"):
        moved(spark, tmp_path, "other", ["direct"], existing=["slow", "other", "new"])
    assert contents(tmp_path) == before


def test_a_newer_topic_stays_in_a_lane_that_has_committed_nothing(spark, tmp_path, received):
    """Regression: when `late` joined the lane, the lane began anew, and delivered `new`, which had only receipts, again."""
    received(fast=(3, 4), new=(0, 99))
    first = tmp_path / "realtime" / "sources" / "0" / "0"
    first.parent.mkdir(parents=True)
    first.write_text('v1\n{"fast":{"0":3}}')
    committed(tmp_path / "direct", '{"slow":{"0":7},"late":{"0":9}}')
    moved(spark, tmp_path, "fast|late|new", existing=["slow", "fast", "late", "new"])
    start = start_offsets.read(spark, settings.Settings(), f"{tmp_path}/realtime")
    assert start.next_offsets == {("fast", 0): 5, ("late", 0): 9, ("new", 0): 100}


def built(spark, config, names, follower=None, *, once=False):
    registry = types.SimpleNamespace(follower=follower)
    return job_lanes.build_realtime(config, spark, registry, None, stop=threading.Event(), names=names, once=once)


@pytest.mark.parametrize("names", [["direct", "batch", "retry"], ["direct", "batch", "retry", "realtime"]])
def test_a_job_without_a_pattern_takes_all_topics_back(spark, tmp_path, received, monkeypatch, names):
    """Regression: it refused to start. With the lane named, as its message asked, it refused because the lane had no topics."""
    received(fast=(5, 9))
    here = functools.partial(topic_moves.move_topics, existing=lambda _: ["slow", "fast"])
    monkeypatch.setattr(topic_moves, "move_topics", here)
    committed(tmp_path / "direct", '{"slow":{"0":7}}')
    committed(tmp_path / "realtime", '{"fast":{"0":5}}')
    for _ in ("the move", "the next start"):
        assert built(spark, config_with(tmp_path, ""), names) == {}
        assert positions(spark, tmp_path / "direct") == {"slow": {"0": 7}, "fast": {"0": 10}}
        assert positions(spark, tmp_path / "realtime") == {}


def test_no_topic_is_taken_from_a_lane_that_runs_elsewhere(spark, tmp_path):
    committed(tmp_path / "direct", '{"slow":{"0":7}}')
    committed(tmp_path / "realtime", '{"fast":{"0":5}}')
    before = contents(tmp_path)
    with (tmp_path / "realtime.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(errors.CheckpointInUse, match="lane realtime of the checkpoint"):
            moved(spark, tmp_path, "", ["direct", "batch", "retry"])
    assert contents(tmp_path) == before | {tmp_path / "realtime.lock": b""}


@pytest.mark.parametrize(
    ("follower", "reason"),
    [(None, 'does not run with snapshot.source = "lookup"'), ("a follower", "needs .* slots: .* Spark has 2")],
    ids=["look-ups", "too few slots"],
)
def test_a_refused_start_moves_no_topic(spark, tmp_path, monkeypatch, follower, reason):
    """Regression: the refused start had moved the topics, and a start with the earlier settings was refused as well.

    Too few slots were found only after other lanes had begun to deliver.
    """
    monkeypatch.setattr(slots, "partitions", lambda _: {"fast": 99})
    committed(tmp_path / "direct", '{"slow":{"0":7},"fast":{"0":5}}')
    before = contents(tmp_path)
    with pytest.raises(errors.SettingsError, match=reason):
        built(spark, config_with(tmp_path, "fast"), ["direct", "batch", "retry", "realtime"], follower)
    assert contents(tmp_path) == before


def test_a_job_that_runs_once_needs_no_slot_for_each_partition(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(slots, "partitions", lambda _: {"fast": 99})
    assert built(spark, config_with(tmp_path, "fast"), ["direct", "realtime"], "a follower", once=True).keys() == {"realtime"}


@pytest.mark.parametrize(
    ("file", "positions"),
    [(left_out_topics.FILE, '{"fast":{"0":100}}'), (paused_topics.FILE, '{"fast":[0,{"0":100}]}')],
    ids=["left out", "paused"],
)
def test_a_topic_beside_the_offset_log_needs_the_direct_lane_to_move(spark, tmp_path, file, positions):
    """Regression: a job without the direct lane did not see its position, and started it from its first record."""
    committed(tmp_path / "direct", '{"slow":{"0":7}}')
    (tmp_path / "direct" / file).write_text(positions)
    committed(tmp_path / "realtime", '{"other":{"0":3}}')
    with pytest.raises(errors.SettingsError, match="moves fast between"):
        moved(spark, tmp_path, "fast|other", ["realtime"])


def test_a_lane_that_gave_all_topics_back_gives_a_newer_topic_back_too(spark, tmp_path, received):
    """Regression: its committed positions were empty, so nothing moved, and all of the topic was delivered again."""
    received(new=(0, 99))
    committed(tmp_path / "direct", '{"slow":{"0":7}}')
    committed(tmp_path / "realtime", "{}")
    moved(spark, tmp_path, "", existing=["slow", "new"])
    assert positions(spark, tmp_path / "direct") == {"slow": {"0": 7}, "new": {"0": 100}}
