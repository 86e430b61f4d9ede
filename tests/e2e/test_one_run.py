"""One run of a job: from Kafka records to verified requests, attempts, dead letters, rejections, and an account that holds.

The tests share the run, as the start of a job takes most of the time. For each test, a fixture registers and publishes before
the run, with topics, tenants, endpoints and subscriptions of that test alone. The last test proves that the records of all
tests add up.
"""

import base64
import collections
import contextlib
import itertools
import uuid
from typing import NamedTuple

import orjson
import pytest

from delivery.stages.kafka import topics
from delivery.webhooks.events import parsing
from delivery.webhooks.results import topic_rows
from delivery.webhooks.retries import retry_records
from fanout.kafka import publishing
from fanout.reconcile import ledger, proving
from fanout.reconcile.findings import Kind
from subscriptions_db.postgres import connect
from tests.e2e.conftest import Platform
from tests.support import databases
from tests.support.poison import POISON

pytestmark = pytest.mark.e2e
EVENT_TYPES = ("end", "end-of-shop", "wait", "order", "shop", "of.t1", "count")
"""Each is the name of a topic, after the platform's prefix."""


@pytest.fixture(scope="module")
def platform(kafka, postgres, tmp_path_factory):
    database = databases.create_migrated(postgres, f"test_{uuid.uuid4().hex[:12]}")
    platform = Platform(kafka, database, tmp_path_factory.mktemp("one-run"))
    with platform.receiving(), contextlib.closing(platform):
        yield platform


@pytest.fixture(scope="module", autouse=True)
def run(platform, of_each_outcome, to_be_retried, among_bad_records, to_be_counted):  # noqa: ARG001  # only their order counts
    """Run the job, after each of these fixtures has registered and published."""
    platform.run_once("--lanes", "direct,batch", source={"tenant_of_topic": rf"{platform.name}\.of\.(.+)"})


def ledger_of(platform, *event_types):
    """Return a ledger of the records in these topics alone."""
    names = {f"{platform.name}.{event_type}" for event_type in event_types}
    found = ledger.Ledger()
    for topic, add in found.adders(platform.config.delivery).items():
        for row in map(orjson.loads, platform.read(topic)):
            if "entries" in row:
                row["entries"] = [entry for entry in row["entries"] if entry["topic"] in names]
                add(orjson.dumps(row))
            elif row["topic"] in names:
                add(orjson.dumps(row))
    return found


FURTHER_ATTRIBUTES = {"subject": "order/4711", "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}


@pytest.fixture(scope="module")
def of_each_outcome(platform):
    """Return the ids of the events that are to be delivered."""
    platform.statuses |= {"fails9": 500, "fails8": 500}
    platform.register(
        [
            {"id": "some", "endpoint": "takes", "event_type": "end", "tenants": ["end1"], "everything": False},
            # An event each: the failures of two would open an endpoint's circuit, and the second would be postponed.
            {
                "id": "nine",
                "endpoint": "fails9",
                "event_type": "end",
                "filter": {"data": {"amount": [{"numeric": [">=", 9]}]}},
            },
            {"id": "eight", "endpoint": "fails8", "event_type": "end", "filter": {"data": {"amount": [8]}}},
            {"id": "paused", "endpoint": "takes", "event_type": "end", "status": "paused"},
        ],
        tenants=("end1", "end2"),
        endpoints=("takes", "fails9", "fails8"),
    )
    ids = [platform.publish(1, event_type="end", first=n, tenant_id="end1", amount=n)[0] for n in range(10)]
    platform.publish(5, event_type="end", first=10, tenant_id="end2", amount=0)
    platform.publish_raw("end", b"not JSON", None, b'{"tenant_id":"nobody"}', b'{"id":"x"}')
    attributes = {"ce_specversion": "1.0", "ce_id": "ce1", "ce_type": "end", "ce_source": "/shop", "ce_tenantid": "end1"}
    further = {f"ce_{name}": value for name, value in FURTHER_ATTRIBUTES.items()}
    headers = tuple((name, value.encode()) for name, value in (attributes | further).items())
    platform.publish_raw("end-of-shop", b'{ "amount" : 1 }', headers=headers)
    return [*ids, "ce1"]


def test_every_event_ends_as_delivered_dead_lettered_skipped_or_rejected(platform, of_each_outcome):
    assert sorted(platform.accepted("takes")) == sorted(of_each_outcome)
    assert all(request.is_verified for request in platform.received)
    [whole] = [request.body for request in platform.received if request.body.endswith(b'"data":{ "amount" : 1 }}')]
    assert orjson.loads(whole)["attributes"] == FURTHER_ATTRIBUTES
    ended = ledger_of(platform, "end", "end-of-shop")
    assert collections.Counter(ended.skipped.values()) == {"subscription_paused": 16}
    assert sorted(row.reason for row in ended.rejected.values()) == [
        "missing_attribute",
        "not_json",
        "tombstone",
        "unknown_tenant",
    ]
    assert sorted(ended.dead_letters) == [("e8", "eight"), ("e9", "nine")]
    letter = ended.dead_letters["e9", "nine"]
    assert [(attempt.attempt, attempt.status, attempt.error_class) for attempt in letter.attempts] == [
        (n, 500, "server_error") for n in (1, 2, 3)
    ]
    assert base64.b64decode(letter.payload_base64) == b'{"id":"e9","tenant_id":"end1","amount":9}'
    # All attempts of one delivery carry one id.
    assert len({request.webhook_id for request in platform.received if request.path in {"/fails9", "/fails8"}}) == 2
    # 11 delivered, 2 dead letters of 3 attempts each.
    assert (ended.attempts, len(ended.delivered)) == (11 + 6, 11)


@pytest.fixture(scope="module")
def to_be_retried(platform):
    """Return the ids of events that one of six endpoints can take at once."""
    platform.statuses |= {"failing": 500, "gone": 410}
    names = ("working", "failing", "gone", "paused", "ordered", "unsigned")
    own = {"failing": {"retry": {"schedule_s": [5]}}, "paused": {"status": "paused"}, "ordered": {"order_by": "amount"}}
    for name in names:
        platform.register([], tenants=(), endpoints=(name,), **{"retry": {}} | own.get(name, {}))
    subscriptions = [{"id": f"to-{name}", "endpoint": name, "event_type": "wait"} for name in names]
    platform.register(subscriptions, tenants=("wait",), endpoints=())
    with connect.connect(platform.config.database) as connection:
        connection.execute("delete from secrets where endpoint_id = 'unsigned'")
    return [platform.publish(1, event_type="wait", first=n, tenant_id="wait", amount=n % 2)[0] for n in range(4)]


def test_what_fails_or_must_wait_is_handed_over_to_the_retry_lane(platform, to_be_retried):
    assert sorted(platform.accepted("working")) == sorted(to_be_retried)
    assert not ledger_of(platform, "wait").dead_letters
    waits = collections.defaultdict(collections.Counter)
    for message in retry_records.messages(*platform.read(platform.config.delivery.retries_topic)):
        waits[message.endpoint_id].update((entry.reason, entry.order_key) for entry in message.entries)
    # Two of them have failed three times before the circuit opens, or five once.
    assert (waits["failing"].total(), {key for _, key in waits["failing"]}) == (4, {None})
    assert {reason for reason, _ in waits["failing"]} <= {"server_error", "circuit_open"}
    assert {name: dict(waits[name]) for name in ("gone", "paused", "ordered", "unsigned")} == {
        "gone": {("gone", None): 4},
        "paused": {("endpoint_paused", None): 4},
        "ordered": {("ordered", "0"): 2, ("ordered", "1"): 2},
        "unsigned": {("endpoint_quarantined", None): 4},
    }
    with connect.connect(platform.config.database) as connection:
        row = connection.execute("select status, disabled_reason from endpoints where endpoint_id = 'gone'").fetchone()
    assert row == {"status": "disabled", "disabled_reason": "gone"}


class Published(NamedTuple):
    """Bad records with healthy events before and after each of them."""

    reasons: dict[publishing.Message, str]
    """Each bad record with the reason of its rejection."""
    placed: list[publishing.Placed]
    """All records, with partition and offset."""
    healthy: list[str]
    """The ids of the healthy events."""


@pytest.fixture(scope="module")
def among_bad_records(platform):
    tenants = ("t1", "t2", "t3")
    every = {"id": "all-types", "endpoint": "healthy", "event_type": "*", "tenants": list(tenants), "everything": False}
    platform.register([every], tenants=tenants, endpoints=("healthy",))
    with connect.connect(platform.config.database) as connection:
        connection.execute("update tenants set status = 'suspended' where tenant_id = 't2'")
    for name in ("order", "shop", "of.t1"):
        platform.create_topic(name)
    shared = itertools.cycle([f"{platform.name}.order", f"{platform.name}.shop"])
    bad = {message_to(topic, value, headers): reason for (value, headers, reason), topic in zip(POISON, shared, strict=False)}
    bad[message_to(f"{platform.name}.of.t1", b'{"tenant_id":"t3"}')] = "tenant_mismatch"
    published = Published(bad, [], [])
    publisher = publishing.Publisher(platform.config.kafka, published.placed.append)
    for number, message in enumerate(bad):
        before, after = f"before-{number}", f"after-{number}"
        published.healthy.extend([before, after])
        publisher.publish(message_to(message.topic, healthy_event(before)))
        publisher.publish(message)
        publisher.publish(message_to(message.topic, healthy_event(after)))
    # A topic whose name only contains the pattern is not ours to read.
    topics.ensure(platform.config.kafka, [f"other-{platform.name}.order"], 1)
    publisher.publish(message_to(f"other-{platform.name}.order", healthy_event("of-others")))
    publisher.flush()
    return published


def message_to(topic, value, headers=()):
    return publishing.Message(topic=topic, key=b"always one partition", value=value, headers=headers)


def healthy_event(event_id):
    return orjson.dumps({"id": event_id, "tenant_id": "t1"})


def test_bad_records_are_kept_as_written_and_valid_events_are_delivered(platform, among_bad_records):
    bad, placed, healthy = among_bad_records
    assert sorted(platform.accepted("healthy")) == sorted(healthy)
    found = ledger_of(platform, "order", "shop", "of.t1")
    assert len(found.delivered) == len(healthy)
    assert not found.dead_letters
    counted = collections.Counter()
    for (lane, _), receipts in found.receipts.items():
        counted[lane] += sum(receipt.rejected for receipt in receipts)
    assert counted == {"direct": len(bad), "batch": len(bad)}
    assert len(found.rejected) == len(bad)
    for record in placed:
        if record.message in bad:
            row = found.rejected[record.message.topic, record.partition, record.offset]
            assert row.reason == bad[record.message]
            assert_keeps(row, record.message)


def assert_keeps(row, message):
    """All bytes, or as many as are kept of what is too large."""
    kept = None if row.value_base64 is None else base64.b64decode(row.value_base64)
    assert kept == (None if message.value is None else message.value[: topic_rows.MAX_REJECTED_BYTES])
    assert row.value_bytes == (None if message.value is None else len(message.value))
    headers = tuple((header.name, base64.b64decode(header.value_base64)) for header in row.headers)
    is_cut = sum(itertools.starmap(parsing.header_bytes, message.headers)) > topic_rows.MAX_REJECTED_BYTES
    assert headers == (message.headers[: len(headers)] if is_cut else message.headers)


@pytest.fixture(scope="module")
def to_be_counted(platform):
    """Publish ten events and a bad record to a topic with one partition; return its name."""
    names = ("accepts", "refuses")
    subscriptions = [{"id": f"to-{name}", "endpoint": name, "event_type": "count"} for name in names]
    platform.register(subscriptions, tenants=("count",), endpoints=names)
    platform.statuses["refuses"] = 400
    platform.create_topic("count", partitions=1)
    platform.publish(10, event_type="count", tenant_id="count")
    platform.publish_raw("count", b"not an event")
    return f"{platform.name}.count"


def without_an_outcome(rows, _):
    row = next(row for row in rows if row["kind"] == "outcomes" and row["endpoint_id"] == "accepts")
    row["entries"].pop()
    return rows


def without_a_receipt(rows, topic):
    gone = next(row for row in rows if row["kind"] == "receipt" and row["lane"] == "direct" and row["topic"] == topic)
    return [row for row in rows if row is not gone]


def with_a_skip(rows, _):
    row = next(row for row in rows if row["kind"] == "outcomes" and row["endpoint_id"] == "accepts")
    row["entries"].append(row["entries"][0] | {"kind": "skipped", "reason": "subscription_paused"})
    return rows


def on_a_changed_log(platform, change, topic):
    """Write a copy of the log with this change; return settings that name the copy."""
    lane = platform.config.delivery
    name = f"{lane.attempts_topic}-{change.__name__}"
    topics.ensure(platform.config.kafka, [name], 1)
    publisher = publishing.Publisher(platform.config.kafka)
    for row in change([orjson.loads(value) for value in platform.read(lane.attempts_topic)], topic):
        publisher.publish(publishing.Message(topic=name, value=orjson.dumps(row)))
    publisher.flush()
    return platform.config.model_copy(update={"delivery": lane.model_copy(update={"attempts_topic": name})})


def test_what_the_job_did_adds_up_and_a_changed_log_does_not(platform, to_be_counted):
    """The first proof is about the records of all tests of this file. Each change is about one topic."""
    proof = proving.reconcile(platform.config, settle_s=0)
    assert proof.account.holds, proof.document()
    direct = proof.account.lanes["direct"]
    records = {name: len(platform.read(f"{platform.name}.{name}")) for name in EVENT_TYPES}
    assert (direct.records, direct.rejected, direct.behind) == (sum(records.values()), len(platform.ledger().rejected), 0)
    assert (records["count"], len(ledger_of(platform, "count").rejected)) == (11, 1)
    groups = {group: counts for group, counts in proof.account.groups.items() if group.event_type == "count"}
    assert set(groups) == {("direct", "count", "accepts"), ("direct", "count", "refuses")}
    assert sum(counts.due for counts in groups.values()) == 20
    assert sum(counts.delivered for counts in groups.values()) == 10
    assert sum(counts.dead_lettered + counts.pending for counts in groups.values()) == 10

    for change, kind in [
        (without_an_outcome, Kind.LOST),
        (without_a_receipt, Kind.UNFINISHED),
        (with_a_skip, Kind.CONTRADICTION),
    ]:
        changed = on_a_changed_log(platform, change, to_be_counted)
        findings = proving.reconcile(changed, settle_s=0).account.findings
        named = {(finding.kind, finding.place.topic) for finding in findings.kept}
        assert named == {(kind, to_be_counted)}, findings
    [finding] = findings.kept[:1]  # of the skip
    assert (finding.subscription_id, finding.endpoint_id) == ("to-accepts", "accepts")
