"""The supervisor warns of batch records that no lane of the job takes apart, and waits at the end for attempts of all lanes."""

import logging
from types import SimpleNamespace

import pytest

from delivery.config import plan_builder, settings
from delivery.stages.lanes import supervisor


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
    monkeypatch.setattr(supervisor.paused_topics, "restore", lambda *_: None)
    monkeypatch.setattr(supervisor.left_out_topics, "align", lambda *_: None)
    monkeypatch.setattr(supervisor.offset_log, "committed", lambda *_: {})
    for module, lane in (
        (supervisor.direct_query, "DirectQuery"),
        (supervisor.batch_query, "BatchQuery"),
        (supervisor.retry_query, "RetryQuery"),
    ):
        monkeypatch.setattr(module, lane, lambda *_, **__: None)
    config = settings.Settings(source=settings.SourceSettings(batch_records=treatment))
    with caplog.at_level(logging.WARNING):
        assert set(supervisor.build(config, None, dict.fromkeys(names), None, None)) == set(names)
    assert (supervisor.WITHOUT_DIRECT_LANE in caplog.messages) is is_warned


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
