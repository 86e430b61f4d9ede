"""The real-time lane starts, restarts and ends its queries, and reports each change to its watch. With Spark."""

import contextlib
import dataclasses
import functools
import http.server
import json
import threading
import types
import uuid

import pytest

from delivery import errors
from delivery.config import settings
from delivery.observability import health, metrics
from delivery.stages.kafka import completed_reader, topics
from delivery.stages.lanes import supervisor
from delivery.stages.realtime import channel, messages, mode_switch, realtime_query, slots, start_offsets, task_server
from delivery.webhooks.results.counters import Counters
from delivery.webhooks.routing.published_registry import Published
from delivery.webhooks.scheduling import unhealthy
from fanout.kafka import topic_scanner
from tests.e2e.conftest import assert_eventually
from tests.spark.test_checkpoints import Topic
from tests.spark.test_realtime import committed
from tests.support import builders

pytestmark = pytest.mark.spark


@pytest.fixture
def lane_of(spark, tmp_path):
    """Makes a real-time lane whose Kafka is this one."""

    def make(kafka, pattern="gone", **delivery):
        config = settings.Settings(
            kafka=settings.KafkaSettings(bootstrap_servers=kafka),
            source=settings.SourceSettings(topic_pattern=".+", realtime_pattern=pattern, starting_offsets="earliest"),
            spark=settings.SparkSettings(checkpoint=str(tmp_path)),
            # Other tests have made the retries topic of the default.
            delivery=settings.DeliverySettings(**{"retries_topic": f"retries-{uuid.uuid4().hex}"} | delivery),
        )
        registry = types.SimpleNamespace(current=lambda: "a registry", newest=None, pause_reason=lambda: None)
        context = types.SimpleNamespace(
            record=lambda _: None,
            network=types.SimpleNamespace(is_paused=False),
            unhealthy=types.SimpleNamespace(current=lambda: unhealthy.NONE_UNHEALTHY),
        )
        return realtime_query.RealtimeLane(config, spark, registry, threading.Event(), context, shares=False)

    return make


@pytest.fixture
def watch():
    return health.Watch(pause_reason=lambda: None, stop=threading.Event())


@pytest.fixture
def topic(spark, kafka, tmp_path):
    return Topic(spark, kafka, tmp_path)


def test_a_lane_that_cannot_read_its_receipts_waits_for_kafka(lane_of, watch, tmp_path, monkeypatch):
    """A lane that started without them would deliver again all records since its last commit."""
    committed(tmp_path / "realtime", '{"gone":{"0":3}}')
    quick = start_offsets.ReceiptBounds(retry_s=0.0, reads=completed_reader.ReadBounds(asked_s=0.1))
    monkeypatch.setattr(start_offsets, "read", functools.partial(start_offsets.read, bounds=quick))
    assert lane_of("127.0.0.1:1")._run_query(watch, once=True) is realtime_query.QueryEnd.KAFKA_AWAY


def test_a_lane_whose_query_has_ended_is_not_well(topic, lane_of, watch, tmp_path):
    topic.publish(b"one, where the lane has committed three")
    committed(tmp_path / "realtime", f'{{"{topic.name}":{{"0":3}}}}')
    (tmp_path / "realtime" / "metadata").write_text(f'{{"id":"{uuid.uuid4()}"}}')
    made = lane_of(topic.kafka.bootstrap_servers, topic.name)
    topics.ensure_all(made._config)
    with pytest.raises(errors.LaneFailed):
        made.run(watch, once=True)
    assert watch.facts().phase is health.QueryPhase.ENDED


def test_a_lane_run_once_asks_for_no_slots(topic, lane_of, watch, monkeypatch):
    """Regression: it logged an error about too few slots, and needs no slot for each partition in its micro-batches."""
    made = lane_of(topic.kafka.bootstrap_servers, topic.name)
    monkeypatch.setattr(made, "_run_query", lambda *_, **__: realtime_query.QueryEnd.DONE)
    made.run(watch, once=True)
    assert made._topics.partitions == {}


class Impatient(threading.Event):
    """An event on which nobody waits."""

    def wait(self, *_):
        return self.is_set()


def test_only_a_lane_to_which_kafka_shows_no_topic_has_none(lane_of, watch, monkeypatch):
    answers, seen = iter([None, {}, {"a": 1}]), []

    def partitions(_):
        seen.append(watch.has_no_topics)
        return next(answers)

    monkeypatch.setattr(slots, "partitions", partitions)
    made = lane_of("127.0.0.1:1")
    made._stop = Impatient()
    assert made._await_topics(watch)
    assert (seen, watch.has_no_topics) == ([False, False, True], False)


def test_the_warning_of_old_records_names_clocks_of_producers(lane_of, caplog):
    """Regression: the only advice was more CPU, which does not help where a producer's clock is slow."""
    made = lane_of("127.0.0.1:1")
    made._mode_switch = mode_switch.ModeSwitch(since=0.0, differs_since=0.0)
    server = types.SimpleNamespace(paused=frozenset())
    query = types.SimpleNamespace(once=False, mode=mode_switch.Mode.REALTIME, server=server)
    assert made._switches_mode(query, 6.0)
    assert "records that are 6 s old by their time in Kafka" in caplog.text
    assert "message.timestamp.type=LogAppendTime" in caplog.text


@pytest.fixture
def slow_receiver():
    """A receiver that answers when the test says so: its URL, and the event that lets it answer."""
    may_answer = threading.Event()

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            may_answer.wait(30)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}/", may_answer
        may_answer.set()
        server.shutdown()


def values_of(config, topic):
    values = []
    with contextlib.closing(topic_scanner.Scanner(config.kafka)) as scanner:
        scanner.read(scanner.extents([topic]), topic, lambda message: values.append(json.loads(message.value())))
    return values


def test_attempts_that_outlive_a_micro_batch_are_awaited_at_the_end(topic, lane_of, watch, slow_receiver):
    """Regression: with --once the job ended without them, and the next start sent the accepted requests again."""
    url, may_answer = slow_receiver
    open_guard = {"allow_networks": ["127.0.0.0/8"], "allow_http": True, "allow_ports": []}
    names = {name: f"{name}-{uuid.uuid4().hex}" for name in ("attempts_topic", "retries_topic")}
    patient = {"attempt_timeout_s": 30, "stop_within_s": 60}  # on a busy machine the attempt ended before it was awaited
    made = lane_of(topic.kafka.bootstrap_servers, topic.name, **names, **open_guard, **patient)
    topics.ensure_all(made._config)
    topic.publish(b'{"tenant_id": "t1", "id": "e1"}')
    base = builders.snapshot(builders.endpoint(url=url), builders.subscription(event_type="*"))
    made._registry.newest = Published(base_id=uuid.uuid4().hex, base=base, changes=None, confirmed_at=0.0)
    made.run(watch, once=True)
    jobs_of = functools.partial(topic.spark.sparkContext.statusTracker().getJobIdsForGroup, None)
    earlier = set(jobs_of())
    drain = threading.Thread(target=supervisor.drain_workers, args=(made._config, None, made.micro_batch_session))
    drain.start()
    assert_eventually(lambda: len(set(jobs_of()) - earlier), lambda jobs: jobs == 2)  # the second one waits
    drain.join(0.5)
    assert drain.is_alive()
    may_answer.set()
    drain.join()
    entries = [entry for value in values_of(made._config, names["attempts_topic"]) for entry in value.get("entries", ())]
    assert [(entry["kind"], entry.get("status")) for entry in entries] == [("postponed", None), ("attempt", 200)]


@pytest.fixture
def query():
    """A query whose tasks the test plays."""
    listening = task_server.TaskServer(lambda _: messages.DriverUpdate(), {}, bind="127.0.0.1", host="127.0.0.1")
    yield realtime_query._Query(None, listening, mode_switch.Mode.REALTIME, 1, once=False)
    listening.close()


def report(query, **fields):
    link = channel.connect(query.server.address)
    link.send(messages.TaskReport(task=0, **fields))
    link.receive()
    link.close()


def test_a_report_without_a_value_leaves_the_gauges_unchanged(lane_of, watch, query):
    made = lane_of("127.0.0.1:1")
    report(query, counters=Counters(most_in_flight=7))
    made._collect(query, watch)
    made._collect(query, watch)
    assert metrics.IN_FLIGHT_PEAK.labels("realtime")._value.get() == 7


def test_a_quiet_lane_waits_no_longer_once_its_tasks_run(lane_of, watch, query):
    """Regression: after an outage the lane stayed unready until the next record came, because only new positions ended it."""
    made = lane_of("127.0.0.1:1")
    watch.wait_for("Kafka is away")
    made._collect(dataclasses.replace(query, mode=mode_switch.Mode.CATCHING_UP), watch)
    assert watch.facts().pause_reason is None


@pytest.mark.parametrize(("fields", "starts"), [({"records": 5}, 3), ({"next_offsets": {("a", 0): 1}}, 0)])
def test_only_what_is_handled_makes_a_start_a_good_one(lane_of, watch, query, fields, starts):
    made = lane_of("127.0.0.1:1")
    made._restarts = 3
    report(query, **fields)
    made._collect(query, watch)
    assert made._restarts == starts


@pytest.mark.parametrize(("mode", "workers"), [(mode_switch.Mode.REALTIME, 3), (mode_switch.Mode.CATCHING_UP, 4)])
def test_all_workers_share_an_endpoints_limits(lane_of, mode, workers):
    made = lane_of("127.0.0.1:1")
    made._topics.partitions = {"a": 2, "b": 1}
    made._config = made._config.model_copy(update={"spark": made._config.spark.model_copy(update={"parallelism": 4})})
    assert made._tools(mode).workers == workers
