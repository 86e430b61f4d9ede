"""An operator sees a running job by metrics that add up, correct probes, and log lines."""

import urllib.error
import urllib.request

import orjson
import pytest
from prometheus_client import parser

from fanout.local import kafka_server as local_kafka
from tests.e2e.conftest import assert_eventually

pytestmark = pytest.mark.e2e


class Outside:
    """The job's own port, as Prometheus and an orchestrator see it."""

    def __init__(self):
        self.port = local_kafka.free_port()
        self.settings = {"port": self.port, "lag_interval_s": 0.2}

    def get(self, path):
        """Return the status and the body; 0 while nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as exc:
            with exc:
                return exc.code, exc.read().decode()
        except OSError:  # also of a connection that is reset: a job that ends meanwhile fails the test by what is waited for
            return 0, ""

    def probe(self, path):
        status, body = self.get(path)
        return status, orjson.loads(body)["reason"] if body else ""

    def sum(self, name, **labels):
        """Return the sum of all samples of `name` with these labels; None when there is none."""
        families = parser.text_string_to_metric_families(self.get("/metrics")[1])
        found = [
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        return sum(found) if found else None


@pytest.fixture
def outside():
    return Outside()


def test_metrics_add_up_and_probes_follow_what_the_job_can_do(platform, own_postgres, outside):
    """One job, one story, because its start takes most of the time.

    1. Without a schema it is healthy, and not ready.          3. Postgres away for too long: healthy, and not ready.
    2. Migrated: ready; what it counts is what was received.   4. Postgres back: ready, and what waited is delivered.
    """
    platform._database = own_postgres.url
    platform.create_topic("order")
    job = platform.start(
        metrics=outside.settings,
        snapshot={"max_age_s": 6, "poll_interval_s": 0.2},
        logs={"format": "json", "attempt_sample": 1.0},
    )
    paused = (
        "paused: the registry has not been read yet: "
        "the registry has no tables yet, and nothing was changed: run `fanout db migrate`"
    )
    assert_eventually(lambda: outside.probe("/readyz"), lambda got: got == (503, paused))
    assert outside.probe("/healthz") == (200, paused)

    platform.migrate()
    platform.statuses |= {"ep2": 500, "ep3": 500}
    users = [
        {"endpoint": "ep2", "event_type": "user", "filter": {"data": {"amount": [2]}}},
        {"endpoint": "ep3", "event_type": "user", "filter": {"data": {"amount": [3]}}},
        {"event_type": "user", "status": "paused"},
    ]
    platform.register([{}, *users], endpoints=("ep1", "ep2", "ep3"))
    assert_eventually(lambda: outside.probe("/readyz"), lambda got: got == (200, "running"))
    platform.publish(50)
    platform.publish(1, event_type="user", first=50, amount=2)
    platform.publish(1, event_type="user", first=51, amount=3)
    platform.publish_raw("order", b"not JSON")
    # 50 orders to ep1; 2 users, each due to an endpoint of its own (the failures of two would open a circuit) and to a paused
    # subscription; a record that is no event.
    assert_eventually(lambda: outside.sum("fanout_records_total", lane="direct"), lambda got: got == 53)
    accepted = len(platform.accepted())
    assert outside.sum("fanout_deliveries_total", outcome="delivered") == accepted == 50
    assert outside.sum("fanout_deliveries_total", outcome="dead_lettered", reason="server_error") == 2
    assert outside.sum("fanout_deliveries_total", outcome="skipped", reason="subscription_paused") == 2
    assert outside.sum("fanout_rejected_total", reason="not_json") == 1
    assert outside.sum("fanout_attempts_total") == len(platform.received) == 50 + 2 * 3
    assert outside.sum("fanout_retries_total") == 4
    assert outside.sum("fanout_latency_seconds_count") == 50
    assert outside.sum("fanout_latency_seconds_bucket", le="1800.0") == 50
    assert outside.sum("fanout_in_flight_peak") <= 256
    assert outside.sum("fanout_micro_batch_seconds_count") >= 1
    assert outside.sum("fanout_registry_rows", kind="subscriptions") == 4
    assert outside.sum("fanout_registry_broadcast_bytes") > 0
    assert all(outside.sum("fanout_cpu_seconds_total", process=process) > 0 for process in ("workers", "jvm", "driver"))
    assert_eventually(lambda: outside.sum("fanout_lag_records", topic=f"{platform.name}.order"), lambda lag: lag == 0)
    for lane in ("direct", "batch", "retry"):
        assert outside.sum("fanout_source_up", lane=lane) == outside.sum("fanout_ready", lane=lane) == 1

    own_postgres.kill()
    assert_eventually(
        lambda: outside.probe("/readyz"), lambda got: got[1].startswith("paused: the registry was last confirmed")
    )
    platform.publish(3, first=100)
    assert_eventually(lambda: outside.sum("fanout_lag_records", lane="direct"), lambda lag: lag == 3)
    status, reason = outside.probe("/healthz")
    assert (status, reason.partition(":")[0]) == (200, "paused")
    assert outside.sum("fanout_ready") == 0

    own_postgres.start()
    assert_eventually(lambda: outside.probe("/readyz"), lambda got: got == (200, "running"))
    assert_eventually(lambda: outside.sum("fanout_deliveries_total", outcome="delivered"), lambda got: got == 53)
    assert outside.get("/")[0] == 404
    assert platform.stop(job) == 0, platform.log()

    lines = [orjson.loads(line) for line in platform.log(whole=True).splitlines() if line.startswith('{"at"')]
    attempted = [line for line in lines if line["event"] == "delivery.attempted"]
    assert len(attempted) == len(platform.received)
    assert len({tuple(line) for line in attempted}) == 1
    assert (
        sum(line["records"] for line in lines if line["event"] == "micro-batch committed" and line["lane"] == "direct")
        == 53 + 3
    )
