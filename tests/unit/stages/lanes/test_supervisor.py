"""The supervisor warns of batch records that no lane of the job takes apart, and waits at the end for attempts of all lanes."""

import logging
from types import SimpleNamespace

import pytest

from delivery import errors
from delivery.config import plan_builder, settings
from delivery.stages.lanes import supervisor

AT_7 = {"order": {"0": 7}}


def without_spark(monkeypatch, positions):
    """Replace Spark: the lanes have committed these `positions`, and a lane is the options of its constructor."""
    monkeypatch.setattr(supervisor.paused_topics, "restore", lambda *_: None)
    monkeypatch.setattr(supervisor.left_out_topics, "align", lambda *_: None)
    monkeypatch.setattr(supervisor.retry_topics, "require_same", lambda *_: None)
    monkeypatch.setattr(supervisor.offset_log, "committed", lambda _, folder: positions.get(folder.rpartition("/")[2], {}))
    for module, lane in (
        (supervisor.direct_query, "DirectQuery"),
        (supervisor.batch_query, "BatchQuery"),
        (supervisor.retry_query, "RetryQuery"),
    ):
        monkeypatch.setattr(module, lane, lambda *_, **options: options)


@pytest.mark.parametrize(
    ("names", "treatment", "is_warned"),
    [
        (("direct", "batch", "retry"), "taken_apart", False),
        (("batch", "retry"), "taken_apart", True),
        (("retry",), "taken_apart", False),
        (("batch",), "rejected", False),
    ],
)
def test_the_batch_lane_alone_warns_of_batch_records_that_it_passes_over(monkeypatch, caplog, names, treatment, is_warned):
    without_spark(monkeypatch, {})
    config = settings.Settings(source=settings.SourceSettings(batch_records=treatment))
    with caplog.at_level(logging.WARNING):
        assert set(supervisor.build(config, None, dict.fromkeys(names), None, None)) == set(names)
    assert (supervisor.WITHOUT_DIRECT_LANE in caplog.messages) is is_warned


@pytest.mark.parametrize(
    ("direct", "batch", "starts_at", "direct_from"),
    [
        pytest.param({}, AT_7, "latest", None, id="a new direct lane"),
        pytest.param({}, AT_7, "earliest", {}, id="a new direct lane that reads all"),
        pytest.param(AT_7, AT_7, "latest", AT_7, id="neither is new"),
        pytest.param({}, {}, "latest", {}, id="both are new, so no record is before them"),
    ],
)
def test_the_batch_lane_reports_what_a_direct_lane_at_the_latest_skips(monkeypatch, direct, batch, starts_at, direct_from):
    """Regression: a direct lane that was added later began at the latest, and nobody reported rejected records before."""
    without_spark(monkeypatch, {"direct": direct, "batch": batch})
    config = settings.Settings(source=settings.SourceSettings(starting_offsets=starts_at))
    built = supervisor.build(config, None, dict.fromkeys(("direct", "batch")), None, None)
    assert built["batch"] == {"direct_from": direct_from}


def test_a_renamed_topic_is_refused_before_a_checkpoint_is_changed(monkeypatch):
    def refuse(*_):
        raise errors.SettingsError("renamed")

    without_spark(monkeypatch, {})
    monkeypatch.setattr(supervisor.retry_topics, "require_same", refuse)
    monkeypatch.setattr(supervisor.paused_topics, "restore", lambda *_: pytest.fail("a checkpoint was changed"))
    with pytest.raises(errors.SettingsError):
        supervisor.build(settings.Settings(), None, dict.fromkeys(("direct", "retry")), None, None)


@pytest.mark.parametrize("ran", [(), ("shared",), ("realtime",), ("shared", "realtime")])
def test_the_workers_of_each_session_are_awaited_with_their_own_plan(monkeypatch, ran):
    """Regression: nobody waited for the real-time lane's, and a plan of another lane finds none of their attempts."""
    config, drained = settings.Settings(), []
    plans = {"shared": plan_builder.plan_of(config), "realtime": plan_builder.of_realtime(config)}
    monkeypatch.setattr(supervisor.telemetry, "Telemetry", lambda *_: SimpleNamespace(observer=None))
    monkeypatch.setattr(
        supervisor.drain, "drain_workers", lambda spark, tools, within_s: drained.append((spark.name, tools.plan, within_s))
    )
    sessions = {name: SimpleNamespace(name=name, sparkContext=None) for name in ran}
    supervisor.drain_workers(config, sessions.get("shared"), sessions.get("realtime"))
    assert [(name, plan) for name, plan, _ in drained] == [(name, plans[name]) for name in ran]
    assert all(within_s <= config.delivery.stop_within_s for *_, within_s in drained)
