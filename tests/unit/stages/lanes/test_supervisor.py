"""An application that runs the batch lane without the direct lane says so if batch records are taken apart."""

import logging

import pytest

from delivery.config import settings
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
