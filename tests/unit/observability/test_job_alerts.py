"""The alerts about the job fire for lanes of the job alone, and never for `fanout archive` or `fanout serve`."""

import re
import subprocess
import sys
import threading

import prometheus_client
import pytest
import yaml

from delivery import job_lanes
from delivery.config import settings
from delivery.observability import health, http_endpoints
from delivery.observability.health import QueryPhase
from fanout.archiver import main_loop
from subscriptions_db.api.server import run
from tests.support.reading import ROOT

[RULES] = yaml.safe_load((ROOT / "deploy" / "helm" / "fanout" / "files" / "alerts.yaml").read_text())["groups"]
ALERTS = {rule["alert"]: rule for rule in RULES["rules"]}
OF_LANES = ("FanoutAbsent", "FanoutNotReady", "FanoutKafkaAway")
CONFIRMED = "fanout_registry_confirmed_timestamp_seconds"
OTHERS = (main_loop.NAME, run.NAME)


def selected(selector, lane):
    """Return True if a selector of PromQL, such as `fanout_ready{lane="direct"}`, selects the series of a lane."""
    labels = re.fullmatch(r"fanout_\w+(?:\{(.*)\})?", selector)[1] or ""
    matchers = re.findall(r'(\w+)(=~|=)"([^"]*)"', labels)
    return all(re.fullmatch(text if kind == "=~" else re.escape(text), lane) for name, kind, text in matchers if name == "lane")


def selectors(alert):
    return re.findall(r"fanout_\w+(?:\{[^}]*\})?", ALERTS[alert]["expr"])


def test_a_process_without_lanes_has_no_metric_of_the_jobs_alerts():
    """Regression: each process served these metrics as 0, so two alerts fired for ever, and FanoutAbsent never."""
    names = {re.match(r"\w+", selector)[0] for alert in (*OF_LANES, "FanoutRegistryAway") for selector in selectors(alert)}
    source = (
        "import fanout.archiver.main_loop, subscriptions_db.api.server.run\n"
        "import prometheus_client\n"
        "print(*(sample.name for family in prometheus_client.REGISTRY.collect() for sample in family.samples))"
    )
    done = subprocess.run([sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    served = set(done.stdout.split())
    assert names == {"fanout_ready", "fanout_source_up", CONFIRMED}
    assert "fanout_api_polls_waiting" in served
    assert not names & served


def test_the_age_of_the_registry_needs_a_time_and_patience():
    """Regression: the time 0 of a starting driver counted, and nothing waited for its first snapshot."""
    assert f"({CONFIRMED} > 0)" in ALERTS["FanoutRegistryAway"]["expr"]
    assert ALERTS["FanoutRegistryAway"]["for"]


@pytest.mark.parametrize("alert", OF_LANES)
def test_an_alert_of_lanes_selects_lanes_of_the_job_alone(alert):
    """Regression: series of the API and the archive hid that the job was absent, and fired the other alerts."""
    found = {lane for selector in selectors(alert) for lane in (*job_lanes.LANES, *OTHERS) if selected(selector, lane)}
    assert found == set(job_lanes.LANES) - ({"realtime"} if alert == "FanoutAbsent" else set())


def test_the_absence_of_each_lane_is_an_alert_of_its_own():
    """Regression: while one of two drivers lived, nothing reported that the other one was absent."""
    terms = ALERTS["FanoutAbsent"]["expr"].split(" or ")
    assert terms == [f'absent(fanout_ready{{lane="{lane}"}})' for lane in ("direct", "batch", "retry")]


def test_an_api_and_an_archive_that_do_not_run_or_cannot_work_are_alerts():
    """Regression: without a process, and after a restart of an archive that cannot write, no alert fired."""
    assert ALERTS["FanoutApiNotReady"]["expr"].startswith('fanout_ready{lane="api"} == 0 or ')
    assert 'absent(fanout_ready{lane="api"}) or ' in ALERTS["FanoutApiNotReady"]["expr"]
    assert 'absent(fanout_lag_records{lane="archive"}) or ' in ALERTS["FanoutArchiveStands"]["expr"]
    assert 'or max(fanout_ready{lane="archive"}) == 0' in ALERTS["FanoutArchiveStands"]["expr"]


@pytest.mark.parametrize(("alert", "lane"), [("FanoutApiNotReady", run.NAME), ("FanoutArchiveStands", main_loop.NAME)])
def test_restarts_do_not_reset_the_alerts_about_the_api_and_the_archive(alert, lane):
    """Regression: each restart ended the absence, and each end the time unready, so a crash loop fired no alert.

    All of this has one label, so that `for` counts the time of any of it together.
    """
    any_of_it = re.search(r"max by \(lane\) \( (absent\(.+?) offset 10m\)\)", ALERTS[alert]["expr"])[1]
    ready = f'fanout_ready{{lane="{lane}"}}'
    restarts = f"or sum_over_time(max by (lane) ({ready})[10m:30s]) < 10 and on (lane) count_over_time({ready}[10m]"
    assert any_of_it.endswith(restarts)


def test_one_topic_that_is_archived_does_not_hide_one_that_stands():
    """Regression: the newest record of any topic counted, so fresh dead letters hid that the attempts were hours late."""
    expression = ALERTS["FanoutArchiveStands"]["expr"]
    assert 'sum by (topic) (fanout_lag_records{lane="archive"}) > 0 and ' in expression
    assert "time() - max by (topic) (fanout_archive_reached_timestamp_seconds) > 600" in expression


def test_only_lanes_whose_deliveries_are_due_at_once_can_be_slow():
    """Regression: the retry lane's deliveries are minutes old by its schedule, so one repaired endpoint fired the alert."""
    found = {lane for lane in job_lanes.LANES for selector in selectors("FanoutSlow") if selected(selector, lane)}
    assert found == {"direct", "realtime"}


def test_restarts_do_not_reset_the_alert_about_lanes_that_are_not_ready():
    """Regression: the series vanished at each restart, so `for: 5m` began again, and a crash loop fired no alert."""
    rule = ALERTS["FanoutNotReady"]
    assert rule["expr"].startswith("sum_over_time(max by (lane) (fanout_ready{")
    assert "for" not in rule


def test_records_that_are_rejected_at_once_are_an_alert():
    """Regression: only rejections over more than 15 minutes fired, and the first ones of a reason never counted.

    The rate of a burst is above 0 for its window only, so `for` must be shorter than the window. A counter with the label of a
    reason begins with its first rejections, not with 0.
    """
    rule = ALERTS["FanoutRejected"]
    assert "rate(fanout_rejected_total[1h]) > 0 or fanout_rejected_total unless fanout_rejected_total offset 1h" in rule["expr"]
    assert rule["for"] == "1m"


def test_each_lane_has_a_readiness_of_its_own():
    watches = {name: health.Watch(pause_reason=lambda: None, stop=threading.Event()) for name in ("ready", "starting")}
    watches["ready"].enter(QueryPhase.RUNNING)
    http_endpoints.serve(settings.MetricsSettings(), watches)
    assert [prometheus_client.REGISTRY.get_sample_value("fanout_ready", {"lane": name}) for name in watches] == [1, 0]
