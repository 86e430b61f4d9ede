"""Each event of a request gets its topic; one wrong event, and nothing is published."""

import orjson
import pydantic
import pytest

from delivery.config import settings
from delivery.model import Record
from delivery.webhooks.events import parsing
from delivery.webhooks.sending import payload
from subscriptions_db.api.contract import problems
from subscriptions_db.api.publishing import bodies, checks

CLOUD_EVENT = {"specversion": "1.0", "id": "e1", "source": "shop", "type": "order.created", "tenantid": "t1"}
PLAIN = {"id": "e1", "type": "order.created", "tenant_id": "t1"}
OPERATIONAL = {"operations": {"topic": "events.fanout.operational"}}
OWNED = {"source": {"tenant_of_topic": r"events\.([^.]+)\..+"}}
NOW_MS = 1_700_000_000_000


def rules(**config):
    return checks.Rules.of(settings.Settings.model_validate(config))


def found_in(*events, content_type=bodies.PLAIN):
    body = orjson.dumps(events if len(events) > 1 else events[0])
    return bodies.read(content_type, (), body)


def checked(*events, content_type=bodies.PLAIN, topic=None, **config):
    found = found_in(*events, content_type=content_type)
    return checks.checked(found, rules(**config), topic=topic, now_ms=NOW_MS)


def problem(*events, **options):
    with pytest.raises(problems.Refused) as refused:
        checked(*events, **options)
    return refused.value.problem


@pytest.mark.parametrize("type_", ["order.created", 5])
def test_the_type_names_the_topic(type_):
    [event] = checked(PLAIN | {"type": type_})
    assert (event.topic, event.event_id, event.tenant_id) == (f"events.{type_}", "e1", "t1")


def test_the_settings_name_the_fields_and_the_prefix():
    source = {"topic_prefix": "in.", "topic_pattern": r"in\..+", "type_field": "meta.kind", "tenant_field": "owner"}
    [event] = checked({"id": 8, "meta": {"kind": "paid"}, "owner": 7}, source=source)
    assert (event.topic, event.event_id, event.tenant_id) == ("in.paid", "8", "7")


def framed(topic_pattern):
    """A binary CloudEvent whose payload has the id of a schema."""
    context = {"specversion": "1.0", "id": "e1", "source": "shop", "type": "order.created", "tenantid": "t1"}
    headers = [(f"ce-{name}".encode(), value.encode()) for name, value in context.items()]
    headers.append((b"content-type", b"application/octet-stream"))
    found = bodies.read("application/octet-stream", headers, b"\0\0\0\0\x07order")
    registry = {"topic_pattern": topic_pattern, "url": "http://127.0.0.1:1"} if topic_pattern else {}
    return checks.checked(found, rules(schema_registry=registry), topic=None, now_ms=NOW_MS)


def test_a_payload_with_a_schemas_id_is_refused_in_topics_of_the_registry():
    """Regression: the API answered 202, and the job rejected the event, or paused the partition without the registry."""
    assert [event.topic for event in framed(r"other\..+")] == ["events.order.created"]
    with pytest.raises(problems.Refused, match="bad_frame: the value begins with a zero byte"):
        framed(r"events\..+")


@pytest.mark.parametrize("id_", [{}, {"id": None}, {"id": ""}])
@pytest.mark.parametrize("topic", [None, "events.order.created"])
def test_an_event_without_an_id_is_refused_because_it_cannot_be_repeated(id_, topic):
    refused = problem(PLAIN, {"type": "order.created", "tenant_id": "t1"} | id_, topic=topic)
    assert [wrong.field for wrong in refused.errors] == ["[1]"]
    assert refused.detail.startswith("[1]: missing_attribute: the event has no id: give each event one")


def test_a_topic_may_be_named_for_events_whose_type_names_none():
    [event] = checked({"id": "e1", "tenant_id": "t1"}, topic="events.t1.orders", **OWNED)
    assert event.topic == "events.t1.orders"
    assert problem({"id": "e1", "tenant_id": "t2"}, topic="events.t1.orders", **OWNED).detail.startswith("tenant_mismatch")


@pytest.mark.parametrize(
    ("attributes", "key"),
    [({}, None), ({"partitionkey": ""}, None), ({"partitionkey": "acme"}, b"acme"), ({"partitionkey": 5}, b"5")],
)
def test_the_partition_key_of_a_cloud_event_is_the_key_of_its_record(attributes, key):
    [event] = checked(CLOUD_EVENT | attributes, content_type=bodies.STRUCTURED)
    assert (event.topic, event.key) == ("events.order.created", key)


def test_a_repeated_event_has_the_webhook_id_of_the_first():
    """docs/api.md promises that a repeat is harmless. Its place in Kafka differs, and its `webhook-id` does not."""
    for content_type, document in ((bodies.STRUCTURED, CLOUD_EVENT), (bodies.PLAIN, PLAIN)):
        [event] = checked(document, content_type=content_type)
        records = [Record(event.topic, place, place, NOW_MS, event.value, event.headers) for place in (0, 3)]
        assert len({payload.webhook_id(parsing.parse(record, parsing.Layout()), "s1") for record in records}) == 1


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({"type": "order.created"}, "missing_attribute: the event has no tenant_id"),
        ({"tenant_id": "t1"}, "missing_attribute: the event has no type, and without ?topic= the type names the topic"),
        (PLAIN | {"id": "\n"}, "bad_attribute: id is not printable text"),
        (PLAIN | {"type": True}, "bad_attribute: type is not printable text"),
        (PLAIN | {"note": "x" * 262_144}, "too_large: "),
        (PLAIN | {"type": "order/created"}, "bad_topic: 'events.order/created' is no name of a topic"),
        (PLAIN | {"type": "x" * 250}, "bad_topic: "),
        (PLAIN | {"tenant_id": "fanout"}, "tenant_mismatch: "),
        (
            PLAIN | {"type": "fanout.operational", "tenant_id": "fanout"},
            "bad_topic: topic events.fanout.operational is the platf",
        ),
        ([], "not_json: the value is JSON, but no object: write the event as a JSON object"),
    ],
)
def test_a_wrong_event_is_refused_with_the_reason_of_the_job(event, text):
    refused = problem(event, PLAIN, **OPERATIONAL) if event else problem(event, PLAIN)
    assert [(error.field, error.problem[: len(text)]) for error in refused.errors] == [("[0]", text)]


@pytest.mark.parametrize("topic", ["fanout.retries", "fanout.dead-letters", "fanout.ticks", "orders"])
def test_no_topic_but_those_of_events_can_be_written(topic):
    source = {"topic_prefix": "", "topic_pattern": ".+" if topic != "orders" else r"events\..+"}
    assert problem(PLAIN | {"type": topic}, source=source).detail.startswith(f"bad_topic: topic {topic} ")
    assert problem(PLAIN, topic=topic, source=source).detail.startswith(f"bad_topic: topic {topic} ")


def test_every_wrong_event_is_named_and_the_answer_is_bounded():
    refused = problem(PLAIN, *[{"type": "order.created"}] * 150)
    assert refused.status == 422
    assert [error.field for error in refused.errors] == [f"[{index}]" for index in range(1, 101)]
    assert refused.detail == "[1]: missing_attribute: the event has no tenant_id: add it (149 more). Nothing was published"


def test_a_key_that_names_tenants_publishes_for_no_other():
    found = found_in(PLAIN, PLAIN | {"tenant_id": "t2"})
    events = checks.checked(found, rules(), topic=None, now_ms=NOW_MS)
    for tenants in (None, frozenset({"t1", "t2"})):
        checks.require_tenants(events, tenants, rules())
    with pytest.raises(problems.Refused) as refused:
        checks.require_tenants(events, frozenset({"t1"}), rules())
    detail = "[1]: the key may not publish for tenant t2: use a key for this tenant. Nothing was published"
    assert (refused.value.problem.status, refused.value.problem.detail) == (403, detail)


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        (CLOUD_EVENT | {"source": "/t1/shop"}, ""),
        (CLOUD_EVENT | {"source": "/t2/shop"}, "the source of tenant t1's events begins with /t1/"),
        (CLOUD_EVENT | {"source": "/t10/shop"}, "the source of tenant t1's events begins with /t1/"),
        (PLAIN, "the source of tenant t1's events begins with /t1/"),
    ],
)
def test_a_key_that_names_tenants_uses_the_sources_of_its_tenants(event, problem):
    """A receiver ignores an event whose source and id it knows. The source of a plain event is its topic."""
    known = rules(api={"publisher_sources": "/{tenant}/"})
    found = found_in(event, content_type=bodies.PLAIN if event is PLAIN else bodies.STRUCTURED)
    events = checks.checked(found, known, topic=None, now_ms=NOW_MS)
    checks.require_tenants(events, None, known)
    if not problem:
        checks.require_tenants(events, frozenset({"t1"}), known)
        return
    with pytest.raises(problems.Refused) as refused:
        checks.require_tenants(events, frozenset({"t1"}), known)
    assert (refused.value.problem.status, refused.value.problem.detail[: len(problem)]) == (403, problem)


@pytest.mark.parametrize("sources", ["/shop/", "/{tenant}", "/{tenant}:", "/{other}/{tenant}/"])
def test_a_beginning_of_sources_that_tells_no_tenants_apart_is_refused(sources):
    with pytest.raises(pydantic.ValidationError):
        rules(api={"publisher_sources": sources})


def test_a_missing_topic_is_named_with_the_way_to_create_it():
    found = found_in(PLAIN, PLAIN | {"type": "order.made"})
    events = checks.checked(found, rules(), topic=None, now_ms=NOW_MS)
    checks.require_topics(events, frozenset())
    with pytest.raises(problems.Refused) as refused:
        checks.require_topics(events, frozenset({"events.order.made"}))
    [error] = refused.value.problem.errors
    assert (refused.value.problem.status, error.field) == (422, "[1]")
    assert "kafka-topics --create --topic events.order.made" in error.problem


def empty_event(*left_out):
    headers = [(b"ce-" + name.encode(), value.encode()) for name, value in CLOUD_EVENT.items() if name not in left_out]
    return bodies.read("application/octet-stream", headers, b"")


def test_a_cloud_event_without_a_payload_is_published():
    [event] = checks.checked(empty_event(), rules(), topic=None, now_ms=NOW_MS)
    assert (event.topic, event.value) == ("events.order.created", None)


@pytest.mark.parametrize("topic", [None, "events.order.created"])
def test_a_cloud_event_without_a_payload_needs_its_type(topic):
    with pytest.raises(problems.Refused, match="the event has no type"):
        checks.checked(empty_event("type"), rules(), topic=topic, now_ms=NOW_MS)
