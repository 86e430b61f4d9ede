"""Events that are published over HTTP are in Kafka as if a Kafka client had written them, or the answer says why not."""

import dataclasses
import itertools
import json
import re
import secrets
import shlex
import time
import uuid

import confluent_kafka
import prometheus_client
import pytest
from confluent_kafka import admin

from delivery.config import plan_builder, settings
from delivery.stages.kafka import topics
from delivery.webhooks.events import opaque, parsing
from delivery.webhooks.sending import payload
from fanout.kafka import publishing, topic_scanner
from subscriptions_db.api.examples.example_table import EXAMPLES as EXAMPLES_OF_OPENAPI
from tests.integration.api import world
from tests.support import topic_records
from tests.support.reading import blocks

pytestmark = pytest.mark.integration

STRUCTURED, BATCH = "application/cloudevents+json", "application/cloudevents-batch+json"
EVENT = {"specversion": "1.0", "id": "e1", "source": "shop", "type": "order", "tenantid": "t1"}
RAW = b'{"specversion":"1.0","id":"%b","source":"shop","type":"order","tenantid":"t1","data": {"b":1, "a" : 2.50}}'
BINARY = {"ce_specversion": "1.0", "ce_id": "b1", "ce_source": "shop", "ce_type": "order", "ce_tenantid": "t2",
          "ce_subject": "Euro%20%E2%82%AC", "ce_partitionkey": "k"}  # fmt: skip
PLAIN = {"id": "p1", "type": "order", "tenant_id": "t1"}
LONG_ID = "".join(map(chr, range(0x4E00, 0x4E00 + 1000)))
"""A tenant id of 3,000 bytes, which compression makes little shorter."""
EXAMPLES = [shlex.split(line) for block in blocks("docs/api.md", "sh") if "/v1/events" in block
            for line in block.replace("\\\n", "").splitlines() if line]  # fmt: skip

DOCUMENTED = EXAMPLES_OF_OPENAPI["publishEvents"]


@pytest.fixture(scope="module")
def served(postgres, kafka):
    """Serve the API over a Kafka with some topics of events, by a prefix of this file's own."""
    prefix = f"published-{uuid.uuid4().hex[:8]}."
    connection = settings.KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)
    topics.ensure(connection, [f"{prefix}order", f"{prefix}order.created"], 2)
    limits = {"small": {"max.message.bytes": "1000"}, "compacted": {"cleanup.policy": "compact"}}
    wanted = [admin.NewTopic(f"{prefix}{name}", 1, config=config) for name, config in limits.items()]
    client = admin.AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for created in client.create_topics(wanted).values():
        created.result(30)
    source = settings.SourceSettings(topic_prefix=prefix, topic_pattern=rf"{re.escape(prefix)}.+")
    with world.served(postgres, kafka=connection, source=source) as made:
        yield made


@pytest.fixture(scope="module")
def publisher(served):
    return served.client(served.keys["publisher"])


def publish(client, document=None, content_type="application/json", path="/v1/events", **sent):
    return client.ask("POST", path, document, content_type=content_type, **sent)


class Reader:
    """Read the records of the topic `order` that come after the present ones."""

    def __init__(self, served):
        self._config = served.config
        self._scanner = topic_scanner.Scanner(served.config.kafka)
        self._first = {extent.place: extent.end for extent in self._extents()}

    def close(self):
        self._scanner.close()

    def _extents(self):
        return self._scanner.extents([f"{self._config.source.topic_prefix}order"])

    def records(self):
        found = []
        new = [dataclasses.replace(extent, first=self._first[extent.place]) for extent in self._extents()]
        self._scanner.read(new, "events", lambda message: found.append(topic_records.record_of(message)))
        return sorted(found, key=lambda record: record[0].value or b"")

    def events(self):
        """Return the new events, as the job's own parser reads them."""
        layout = plan_builder.layout_of(self._config)
        return {event.event_id: event for event in (parsing.parse(record, layout) for record, _ in self.records())}


@pytest.fixture
def reader(served):
    made = Reader(served)
    yield made
    made.close()


def test_each_form_arrives_as_if_a_kafka_client_had_written_it(publisher, reader):
    before = prometheus_client.REGISTRY.get_sample_value("fanout_api_published_events_total") or 0
    answers = [
        publish(publisher, raw=RAW % b"s1", content_type=f"{STRUCTURED}; charset=UTF-8"),
        publish(publisher, raw=b"[%b , %b]" % (RAW % b"s2", RAW % b"s3"), content_type=BATCH),
        publish(publisher, raw=b' {"a" : 1.0} ', **BINARY),
        publish(publisher, raw=b'{"id":"p1", "type": "order","tenant_id":"t1" }'),
        publish(publisher, [PLAIN | {"id": 2}, PLAIN | {"id": 3, "tenant_id": "t2", "sub_tenant_id": 100}]),
        publish(publisher, raw=b"", content_type="application/json", **BINARY | {"ce_id": "b2"}),
        publish(publisher, [], BATCH),
    ]
    assert [answer.status for answer in answers] == [202] * 7
    assert [answer.json["accepted"] for answer in answers] == [["s1"], ["s2", "s3"], ["b1"], ["p1"], ["2", "3"], ["b2"], []]
    events = reader.events()
    assert set(events) == {"s1", "s2", "s3", "b1", "b2", "p1", "2", "3"}
    assert {events[name].data for name in ("s1", "s2", "s3")} == {b'{"b":1, "a" : 2.50}'}
    assert (events["b1"].data, events["b1"].tenant_id) == (b' {"a" : 1.0} ', "t2")
    assert events["b1"].attributes == (("subject", "Euro €"), ("partitionkey", "k"))
    assert events["p1"].data == b'{"id":"p1", "type": "order","tenant_id":"t1" }'
    assert (events["3"].tenant_id, events["3"].sub_tenant_id) == ("t2", "100")
    assert (events["b2"].opaque, events["b2"].record.value) == (opaque.NO_PAYLOAD, None)
    assert prometheus_client.REGISTRY.get_sample_value("fanout_api_published_events_total") == before + 8


def test_the_record_equals_that_of_a_kafka_client(served, publisher, reader):
    """The two records have equal values, headers, keys and partitions."""
    key, value = b"acme", json.dumps(EVENT | {"partitionkey": "acme"}).encode()
    client = publishing.Publisher(served.config.kafka)
    headers = (("content-type", STRUCTURED.encode()),)
    client.publish(publishing.Message(topic=f"{served.config.source.topic_prefix}order", value=value, key=key, headers=headers))
    client.flush()
    assert publish(publisher, raw=value, content_type=STRUCTURED).status == 202
    [theirs, ours] = [(record.value, record.headers, record.partition, of_record) for record, of_record in reader.records()]
    assert theirs == ours


def test_a_repeated_event_has_the_same_webhook_id(publisher, served, reader):
    assert [publish(publisher, EVENT, STRUCTURED).json["accepted"] for _ in range(2)] == [["e1"], ["e1"]]
    layout = plan_builder.layout_of(served.config)
    events = [parsing.parse(record, layout) for record, _ in reader.records()]
    assert len(events) == 2
    assert len({payload.webhook_id(event, "s1") for event in events}) == 1


def test_one_wrong_event_and_nothing_is_published(publisher, reader):
    answer = publish(publisher, [EVENT, EVENT | {"tenantid": None}, EVENT, EVENT | {"time": "noon"}], BATCH)
    assert (answer.status, answer.fields) == (422, ["[1]", "[3]"])
    assert answer.json["errors"][0]["problem"] == "missing_attribute: the event has no tenantid: add it"
    answer = publish(publisher, [EVENT, EVENT | {"type": "unknown"}], BATCH)
    assert (answer.status, answer.fields) == (422, ["[1]"])
    assert reader.records() == []


def test_an_idempotency_key_is_refused_and_says_what_to_do_instead(publisher, reader):
    """Regression: the header was ignored, so a repeat with other event ids was published again."""
    answer = publish(publisher, EVENT, STRUCTURED, idempotency_key="k1")
    assert (answer.status, answer.fields) == (422, ["Idempotency-Key"])
    assert "send the request without the header, and repeat events with the same ids" in answer.json["detail"]
    assert reader.records() == []


def test_a_key_publishes_for_its_tenants_only(served, reader):
    client = served.client(served.keys["publisher of t1"])
    assert publish(client, PLAIN).status == 202
    answer = publish(client, [PLAIN, PLAIN | {"tenant_id": "t2"}])
    assert (answer.status, answer.fields) == (403, ["[1]"])
    for name in ("acme", "reader", "poller"):
        assert publish(served.client(served.keys[name]), PLAIN).status == 403
    assert publish(served.client(served.keys["operator"]), PLAIN | {"id": "p2"}).status == 202
    assert set(reader.events()) == {"p1", "p2"}


def test_a_topic_is_named_for_all_events_and_no_other_parameter_is_taken(publisher, served, reader):
    prefix = served.config.source.topic_prefix
    untyped = {"id": "p3", "tenant_id": "t1"}
    assert publish(publisher, untyped).status == 422
    assert publish(publisher, untyped, path=f"/v1/events?topic={prefix}order").json["accepted"] == ["p3"]
    for query in (f"topic={prefix}missing", "topic=fanout.retries", "topic=%20", "other=1", "topic=a&topic=b"):
        assert publish(publisher, untyped, path=f"/v1/events?{query}").status == 422
    assert reader.events()["p3"].event_type == "order"


def test_the_examples_of_the_document_publish(publisher):
    assert len(EXAMPLES) == 4
    for number, words in enumerate(EXAMPLES, start=17):
        headers = dict(value.split(": ", 1) for option, value in itertools.pairwise(words) if option == "-H")
        sent = {name.lower().replace("-", "_"): value for name, value in headers.items() if name != "Authorization"}
        answer = publisher.ask("POST", "/v1/events", raw=words[words.index("-d") + 1].encode(), **sent)
        assert (answer.status, answer.json) == (202, {"accepted": [f"order-{number}"]})


@pytest.mark.parametrize("content_type", DOCUMENTED.bodies)
def test_the_examples_of_the_openapi_document_publish(publisher, content_type):
    answer = publish(publisher, DOCUMENTED.bodies[content_type], content_type)
    assert (answer.status, answer.json) == (202, DOCUMENTED.answer)


def test_an_event_that_kafka_never_takes_is_refused_and_names_its_topic(served, publisher):
    prefix = served.config.source.topic_prefix
    small = [EVENT | {"id": f"s{number}", "type": "small", "data": secrets.token_hex(250)} for number in range(3)]
    assert publish(publisher, small, BATCH).status == 202  # together they are too large, and each of them is not
    answer = publish(publisher, [*small, small[0] | {"data": secrets.token_hex(2000)}], BATCH)
    assert (answer.status, answer.fields, f"{prefix}small" in answer.json["detail"]) == (413, ["[3]"], True)
    unkeyed = EVENT | {"type": "compacted"}
    answer = publish(publisher, unkeyed, STRUCTURED)
    assert (answer.status, f"{prefix}compacted" in answer.json["detail"]) == (422, True)
    assert publish(publisher, unkeyed | {"partitionkey": "k"}, STRUCTURED).status == 202


def shown_limit(answer):
    """Return the limit that the headers of an answer show, and its rest."""
    return answer.headers["ratelimit-limit"], answer.headers["ratelimit-remaining"]


def test_all_keys_of_a_tenant_share_its_limit_of_events(postgres):
    broker = MockKafka()
    broker.create("events.order")
    with world.served(postgres, kafka=broker.settings, max_tenant_events_per_s=0.01) as served:
        of_all, of_t1 = served.client(served.keys["publisher"]), served.client(served.keys["publisher of t1"])
        other = PLAIN | {"tenant_id": "t2"}
        answer = publish(of_t1, PLAIN)
        assert (answer.status, shown_limit(answer)) == (202, ("1", "0"))
        for client, sent in ((of_t1, PLAIN), (of_all, [other, PLAIN])):
            answer = publish(client, sent)
            assert (answer.status, answer.json["code"], *shown_limit(answer)) == (429, "tenant_rate_limited", "1", "0")
            assert answer.json["type"].endswith("/v1/problems/tenant_rate_limited")
            assert "0.01 events a second of tenant t1" in answer.json["detail"]
            assert 98 <= int(answer.headers["retry-after"]) <= 100
        assert publish(of_all, other).status == 202  # the refused request did not count for t2


def test_all_keys_of_a_tenant_share_its_events_of_the_day(postgres):
    """The counts outlive the process: they are written when it stops, and at once known to the next one that publishes."""
    broker = MockKafka()
    broker.create("events.order")
    options = {"message.max.bytes": "10000"}
    kafka = settings.KafkaSettings(bootstrap_servers=broker.settings.bootstrap_servers, librdkafka_options=options)
    with world.served(postgres, kafka=kafka, max_tenant_events_per_day=3) as served:
        of_all, of_t1 = served.client(served.keys["publisher"]), served.client(served.keys["publisher of t1"])
        other = PLAIN | {"tenant_id": "t2"}
        for left in (2, 1):
            answer = publish(of_t1, PLAIN)
            assert (answer.status, shown_limit(answer)) == (202, ("3", str(left)))
        assert publish(of_all, [PLAIN] * 2).status == 202  # it begins below the quota
        for client, sent in ((of_t1, PLAIN), (of_all, [other, PLAIN])):
            answer = publish(client, sent)
            assert (answer.status, answer.json["code"]) == (429, "quota")
            assert "tenant t1 has published its quota of 3 events" in answer.json["detail"]
            assert 0 < int(answer.headers["retry-after"]) <= 86_400
            assert answer.headers["ratelimit-remaining"] == "0"
            assert int(answer.headers["ratelimit-reset"]) == pytest.approx(int(answer.headers["retry-after"]), abs=2)
        assert publish(of_all, other).status == 202  # the refused request did not count for t2
        # Regression: a row of a tenant id that is too long for the index failed, and with it the rows of all other tenants.
        assert publish(of_all, PLAIN | {"tenant_id": LONG_ID}).status == 202
        # Regression: an event that Kafka refuses made the others of its batch free of the quota.
        third = PLAIN | {"tenant_id": "t3"}
        statuses = [publish(of_all, [third, third | {"padding": "x" * 20_000}]).status for _ in range(4)]
        assert statuses == [413, 413, 413, 429]
    with served.registry() as opened:
        rows = opened.execute("select tenant_id, events from published_events order by tenant_id").fetchall()
    # Not the unregistered t3, which the process counted alone.
    assert rows == [{"tenant_id": "t1", "events": 4}, {"tenant_id": "t2", "events": 1}]
    with world.running(served.config) as port:
        of_next = world.Client(port, served.keys["publisher"])
        answer, deadline = publish(of_next, PLAIN), time.monotonic() + 30
        assert answer.status == 202  # the next process does not know the sum yet
        while answer.json.get("code") != "quota":
            assert time.monotonic() < deadline
            answer = publish(of_next, PLAIN)
        # A refused request makes the process read the tenant's own quota.
        made = world.Client(port, served.keys["operator"]).put("/v1/tenants/t1", {"quotas": {"events_per_day": 100_000}})
        assert made.json["quotas"] == {"events_per_day": 100_000}
        while publish(of_next, PLAIN).status != 202:
            assert time.monotonic() < deadline


def test_publishing_can_be_turned_off(postgres):
    with world.served(postgres, publishing=False) as served:
        answer = publish(served.client(served.keys["publisher"]), PLAIN)
        assert (answer.status, answer.json["code"]) == (404, "not_found")
        assert "api.publishing" in answer.json["detail"]


class MockKafka:
    """A broker within this process that creates any topic that a client asks for, and that can end at once."""

    def __init__(self):
        options = {"test.mock.num.brokers": 1, "bootstrap.servers": "unused:1", "log_level": 0}
        self._owner = confluent_kafka.Producer(options)
        [broker] = self._owner.list_topics(timeout=10).brokers.values()
        self.settings = settings.KafkaSettings(bootstrap_servers=f"{broker.host}:{broker.port}")

    def create(self, topic):
        self._owner.produce(topic, b"")
        assert self._owner.flush(10) == 0

    def names(self):
        return set(self._owner.list_topics(timeout=10).topics)

    def end(self):
        self._owner.close()
        self._owner = None


def test_no_topic_is_created_even_where_the_broker_would(postgres):
    broker = MockKafka()
    broker.create("events.order")
    with world.served(postgres, kafka=broker.settings) as served:
        publisher = served.client(served.keys["publisher"])
        answer = publish(publisher, PLAIN | {"type": "ordre"})
        assert (answer.status, "kafka-topics --create --topic events.ordre" in answer.json["detail"]) == (422, True)
        assert publish(publisher, PLAIN).status == 202
        assert broker.names() == {"events.order"}


def test_without_kafka_the_answer_is_503_in_time_and_the_rest_of_the_api_works(postgres):
    broker = MockKafka()
    broker.create("events.order")
    with world.served(postgres, kafka=broker.settings, request_timeout_s=4) as served:
        publisher = served.client(served.keys["publisher"])
        deadline = time.monotonic() + 60
        while publish(publisher, PLAIN).status != 202:  # on a busy machine the first answer may be a 503
            assert time.monotonic() < deadline
        broker.end()
        for type_ in ("order", "unknown"):  # a topic that is known from before, and one that would have to be asked for
            answer = publish(publisher, PLAIN | {"type": type_})
            assert (answer.status, answer.headers["retry-after"]) == (503, "2")
            said = (
                "Kafka has not confirmed every event, and may have some"
                if type_ == "order"
                else "Kafka does not list its topics"
            )
            assert answer.json["detail"].startswith(said)
            assert broker.settings.bootstrap_servers not in answer.text.decode()
        assert publisher.get("/readyz").status == 200
        assert served.client(served.keys["acme"]).get("/v1/endpoints").status == 200
