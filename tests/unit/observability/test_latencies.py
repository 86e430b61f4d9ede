"""The histogram of latencies has every observation of every lane."""

import sys
import threading
from collections import Counter

import prometheus_client
import pytest

from delivery.observability import metrics
from delivery.webhooks.results.counters import LATENCY_BUCKETS_S

LANES = ("direct", "realtime")
REPORTS = 5_000
"""Reports of each lane."""


def seen(lane):
    labels = {"lane": lane}
    found = [prometheus_client.REGISTRY.get_sample_value(f"fanout_latency_seconds_{part}", labels) for part in ("count", "sum")]
    return [value or 0 for value in found]


@pytest.fixture
def frequent_switches():
    """Python changes threads so often that two lanes meet in the same statements."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("frequent_switches")
def test_two_lanes_that_report_at_once_lose_no_latency():
    """Regression: each lane wrote back what it had read before the other one's report, so half of the reports were lost."""
    before = {lane: seen(lane) for lane in LANES}
    begin, report = threading.Barrier(len(LANES)), Counter(dict.fromkeys(LATENCY_BUCKETS_S, 1))

    def add(lane):
        begin.wait()
        for _ in range(REPORTS):
            metrics.LATENCY_SECONDS.add(lane, report, 1.0)

    threads = [threading.Thread(target=add, args=(lane,)) for lane in LANES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    added = {lane: [now - then for now, then in zip(seen(lane), before[lane], strict=True)] for lane in LANES}
    assert added == {lane: [REPORTS * len(LATENCY_BUCKETS_S), REPORTS] for lane in LANES}
