"""One lane takes batch records apart, before its task ends, and `fanout reconcile` finds nothing. Without Spark and Kafka."""

import base64
from types import SimpleNamespace

import orjson
import pyarrow as pa
import pytest

from delivery import errors
from delivery.config import plan_builder, settings
from delivery.stages.kafka import event_writer, record_reader
from delivery.stages.tasks import deliver_events, task_context
from delivery.webhooks.events import batch_records, parsing
from delivery.webhooks.results import counters
from delivery.webhooks.routing import registries
from delivery.webhooks.sending import payload
from delivery.webhooks.state import pickling
from tests.support import assignments, builders, sinks
from tests.support.written_topics import WrittenTopics
from tests.unit.fanout.reconcile.test_ledger import TOPICS

CONFIG = settings.Settings(source=settings.SourceSettings(batch_records="taken_apart"))
TOPIC = "events.order.created"
BATCH = orjson.dumps(
    [{"key": "content-type", "value": base64.b64encode(b"application/cloudevents-batch+json").decode()}]
).decode()
EVENTS = [
    orjson.dumps({"specversion": "1.0", "id": f"e{n}", "type": "x", "source": "/s", "tenantid": "t1", "data": n})
    for n in (0, 1)
]
RECORDS = [b"[%s,null,%s]" % tuple(EVENTS), b"[]", b'{"tenant_id": "t1", "id": "e9"}']


def arrow_batch(*, with_key=True):
    count = len(RECORDS)
    columns = [[TOPIC] * count, [0] * count, list(range(count)), [0] * count, RECORDS, [BATCH, BATCH, None]]
    made = dict(zip(deliver_events.COLUMNS, columns, strict=True))
    return pa.RecordBatch.from_pydict(made | ({"key": [b"k", None, b"k"]} if with_key else {}))


class Kafka:
    """Keeps the events that were written, in calls. `answers`: for each call in turn, an error to raise or the refusals."""

    def __init__(self, *answers):
        self.calls, self._answers = [], list(answers)

    def __call__(self, records):
        self.calls.append(list(records))
        answer = self._answers.pop(0) if self._answers else {}
        if isinstance(answer, Exception):
            raise answer
        return answer

    def ids(self, call):
        """The `webhook-id` of each valid event of a call, for one subscription."""
        valid = [event for event in self.calls[call] if event.value != b"null"]
        records = [builders.record(value=event.value, headers=event.headers) for event in valid]
        return [payload.webhook_id(parsing.parse(record, parsing.Layout()), "s1") for record in records]


def source():
    return registries.BroadcastSource(
        base_id="batch records", broadcast=SimpleNamespace(value=pickling.packed(builders.snapshot())), delta=None
    )


@pytest.fixture
def lane(tmp_path):
    """Run a task of a lane; return the counts of what it observed, and the rows that it wrote."""

    def run(kafka, *, batch_lane=False, direct_from=None, config=CONFIG):
        counted, folder = [], sinks.Folder(tmp_path)
        tools = task_context.Tools(
            plan=plan_builder.plan_of(config),
            observe=lambda results: counted.append(counters.count(results, cpu_s=0.0)),
            sink=folder,
            write_events=kafka,
        )
        if batch_lane:
            assignments.routing_task(tools, source(), [deliver_events.records(arrow_batch())], direct_from)
        else:
            list(assignments.task(tools, source(), [deliver_events.records(arrow_batch())]))
        return sum(counted, counters.Counters()), folder.rows()

    return run


def rejected(rows, config=CONFIG):
    found = [orjson.loads(row.value) for row in rows if row.topic == config.delivery.rejected_topic]
    return [(row["offset"], row["reason"]) for row in found]


def receipts(rows):
    found = [orjson.loads(row.value) for row in rows if row.topic == CONFIG.delivery.attempts_topic]
    return [(row["records"], row["rejected"], row["due"]) for row in found if row.get("kind") == "receipt"]


def test_the_direct_lane_writes_each_event_with_the_key_of_its_batch(lane):
    counted, rows = lane(kafka := Kafka())
    [written] = kafka.calls
    assert [(event.topic, event.partition, event.key) for event in written] == [(TOPIC, 0, b"k")] * 3
    assert [event.value for event in written] == [EVENTS[0], b"null", EVENTS[1]]
    assert (counted.taken_apart, counted.rejected) == (3, {"empty": 1})
    assert rejected(rows) == [(1, "empty")]
    assert receipts(rows) == [(3, 1, 0)]  # the batch counts as an event that nobody has subscribed to


@pytest.mark.parametrize("direct_from", [None, {}])
def test_the_batch_lane_neither_writes_nor_rejects_a_batch_record(lane, direct_from):
    """Where it runs in an application of its own, the direct lane of another one takes the record apart."""
    counted, rows = lane(kafka := Kafka(), batch_lane=True, direct_from=direct_from)
    assert (kafka.calls, counted.taken_apart) == ([], 0)
    assert rejected(rows) == ([(1, "empty")] if direct_from is None else [])
    assert receipts(rows) == [(3, 1, 0)]


def test_by_default_a_batch_record_is_rejected_and_nothing_is_written(lane):
    _, rows = lane(kafka := Kafka(), config=settings.Settings())
    assert (kafka.calls, rejected(rows)) == ([], [(0, "unsupported"), (1, "unsupported")])


def test_a_task_fails_without_a_receipt_if_an_event_was_not_written(lane):
    kafka = Kafka(errors.KafkaUnavailable("away"))
    with pytest.raises(errors.KafkaUnavailable):
        lane(kafka)
    _, rows = lane(kafka)
    assert len(receipts(rows)) == 1


def test_a_task_that_runs_again_writes_the_same_webhook_ids_again(lane):
    """A crash before the commit: the events are in the topic twice, and receivers ignore the second of each."""
    kafka = Kafka()
    lane(kafka)
    lane(kafka)
    assert kafka.ids(0) == kafka.ids(1)
    assert len(set(kafka.ids(0))) == 2


def test_a_batch_record_that_kafka_refuses_for_good_is_rejected(lane):
    counted, rows = lane(Kafka({1: "Topic authorization failed"}))
    assert rejected(rows) == [(1, "empty"), (0, "not_written")]
    assert (counted.taken_apart, counted.rejected) == (0, {"empty": 1, "not_written": 1})


@pytest.mark.parametrize("answers", [{}, {0: "Topic authorization failed"}])
def test_the_account_holds_with_batch_records(lane, answers):
    """Both lanes read the batch; the direct lane takes it apart, or rejects it because Kafka refuses its events."""
    lane(Kafka(answers))
    _, rows = lane(Kafka(), batch_lane=True, direct_from={})  # with the rows of the direct lane's task
    topics = WrittenTopics(records=3, no_event={0, 1})
    named = {CONFIG.delivery.attempts_topic: TOPICS.attempts, CONFIG.delivery.rejected_topic: TOPICS.rejected}
    topics.write_rows(row._replace(topic=named[row.topic]) for row in rows if row.topic in named)
    account = topics.account()
    assert [finding.text() for finding in account.findings.kept] == []
    assert {name: (of.records, of.rejected) for name, of in account.lanes.items()} == {"direct": (3, 1), "batch": (3, 1)}


def test_without_the_setting_records_have_no_key():
    assert {record.key for record in deliver_events.records(arrow_batch(with_key=False))} == {None}
    assert [record.key for record in deliver_events.records(arrow_batch())] == [b"k", None, b"k"]


def test_a_batch_that_cannot_be_split_is_rejected_alone(monkeypatch, lane):
    """Regression: a thread with a fuller stack takes fewer levels of JSON. The task failed, and all lanes stopped."""

    def split(_):
        raise RecursionError

    monkeypatch.setattr(task_context.event_writer.batch_records, "event_records", split)
    counted, rows = lane(kafka := Kafka())
    assert (sum(map(len, kafka.calls)), counted.taken_apart) == (0, 0)
    assert rejected(rows) == [(1, "empty"), (0, "not_written")]


def test_the_key_of_a_batch_counts_for_each_of_its_records():
    """Regression: a record of 1 MB with a key of 900 kB and a thousand empty events became 900 MB."""
    record = builders.record(value=b"[%s]" % b",".join([b"{}"] * 1000), key=b"k" * 900_000)
    batch = batch_records.BatchRecord(record, events=1000, written_bytes=2000)
    results = event_writer.take_apart([batch, batch._replace(record=record._replace(key=b"k"))], kafka := Kafka())
    [rejection] = results.rejections
    assert (rejection.reason, "900002000 bytes" in rejection.detail) == ("not_written", True)
    assert [len(call) for call in kafka.calls] == [1000]


@pytest.mark.parametrize(
    ("count", "given"), [(record_reader.MAX_HEADERS, record_reader.MAX_HEADERS), (record_reader.MAX_HEADERS + 1, 0)]
)
def test_no_lane_gets_more_headers_than_the_direct_lanes_client_gives(count, given):
    headers = pa.array(["[" + ",".join(['{"key":"h"}'] * count) + "]"])
    batch = arrow_batch().slice(0, 1).set_column(5, "headers", headers)
    [record] = deliver_events.records(batch)
    assert len(record.headers) == given


def test_the_name_of_a_header_ends_at_its_first_nul_in_every_lane():
    headers = pa.array(['[{"key":"ce_id\\u0000x"}]'])
    [record] = deliver_events.records(arrow_batch().slice(0, 1).set_column(5, "headers", headers))
    assert record.headers == (("ce_id", b""),)
