"""`fanout reconcile` proves what the job did from the topics alone, and notices a row that is taken away or added."""

import contextlib

import confluent_kafka
import orjson
import pytest

from delivery.stages.kafka import topics
from fanout.kafka import publishing, topic_scanner
from fanout.reconcile import proving
from fanout.reconcile.findings import Kind
from tests.e2e.conftest import JOB_TIMEOUT_S

pytestmark = pytest.mark.e2e


def rows_of(platform, name):
    rows: list[confluent_kafka.Message] = []
    with contextlib.closing(topic_scanner.Scanner(platform.config.kafka)) as scanner:
        scanner.read(scanner.extents([name]), name, rows.append)
    return rows


def without_an_outcome(rows):
    row = next(row for row in rows if row["kind"] == "outcomes" and row["endpoint_id"] == "ep1")
    row["entries"].pop()
    return rows


def without_a_receipt(rows):
    gone = next(row for row in rows if row["kind"] == "receipt" and row["lane"] == "direct")
    return [row for row in rows if row is not gone]


def with_a_skip(rows):
    row = next(row for row in rows if row["kind"] == "outcomes" and row["endpoint_id"] == "ep1")
    row["entries"].append(row["entries"][0] | {"kind": "skipped", "reason": "subscription_paused"})
    return rows


def on_a_changed_log(platform, change):
    """The same settings, with a copy of the log of which `change` has made something else."""
    lane = platform.config.delivery
    name = f"{lane.attempts_topic}-{change.__name__}"
    topics.ensure(platform.config.kafka, [name], 1)
    publisher = publishing.Publisher(platform.config.kafka)
    for row in change([orjson.loads(message.value()) for message in rows_of(platform, lane.attempts_topic)]):
        publisher.publish(publishing.Message(topic=name, value=orjson.dumps(row)))
    publisher.flush()
    return platform.config.model_copy(update={"delivery": lane.model_copy(update={"attempts_topic": name})})


def test_what_the_job_did_adds_up_and_a_changed_log_does_not(platform):
    platform.register([{}, {"endpoint": "ep2"}], endpoints=("ep1", "ep2"))
    platform.statuses["ep2"] = 400
    platform.create_topic("order", partitions=1)
    platform.publish(10)
    platform.publish_raw("order", b"not an event")
    job = platform.start("--once", "--lanes", "direct")
    assert job.wait(JOB_TIMEOUT_S) == 0, platform.log()

    proof = proving.reconcile(platform.config, settle_s=0)
    assert proof.account.holds, proof.document()
    direct = proof.account.lanes["direct"]
    assert (direct.counts.due, direct.counts.delivered) == (20, 10)
    assert direct.counts.dead_lettered + direct.counts.pending == 10
    assert (direct.records, direct.rejected, direct.behind) == (11, 1, 0)
    assert {(group.event_type, group.endpoint_id) for group in proof.account.groups} == {("order", "ep1"), ("order", "ep2")}

    for change, kind in [
        (without_an_outcome, Kind.LOST),
        (without_a_receipt, Kind.UNFINISHED),
        (with_a_skip, Kind.CONTRADICTION),
    ]:
        findings = proving.reconcile(on_a_changed_log(platform, change), settle_s=0).account.findings
        named = {(finding.kind, finding.place.topic) for finding in findings.kept}
        assert named == {(kind, f"{platform.name}.order")}, findings
    [finding] = proving.reconcile(on_a_changed_log(platform, with_a_skip), settle_s=0).account.findings.kept[:1]
    assert (finding.subscription_id, finding.endpoint_id) == ("s0", "ep1")
