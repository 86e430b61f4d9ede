"""A request for one event has the body and the headers of its content mode."""

import orjson
import pytest

from delivery.registry_model import ContentMode
from delivery.webhooks.sending import payload
from tests.support import builders


def test_the_payload_is_in_the_body_byte_for_byte():
    event = builders.event(data=b'{ "amount" : 1.50 }', sub_tenant_id="100")
    body = payload.content(event, ContentMode.STANDARD).body
    assert b'"data":{ "amount" : 1.50 }}' in body
    assert orjson.loads(body) == {
        "type": "order.created",
        "timestamp": "2026-01-01T00:00:00Z",
        "id": event.event_id,
        "source": "events.order.created",
        "tenant_id": "t1",
        "sub_tenant_id": "100",
        "data": {"amount": 1.5},
    }


def test_the_webhook_id_is_stable_and_safe_in_a_header():
    event = builders.event(event_id="a.b\0é" * 50)
    first = payload.webhook_id(event, "s1")
    assert first == payload.webhook_id(event, "s1")
    assert first.removeprefix("msg_").isalnum()
    assert len(first) == len("msg_") + 32


@pytest.mark.parametrize("other", [{"event_id": "e2"}, {"source": "elsewhere"}])
def test_different_events_have_different_webhook_ids(other):
    same = {"event_id": "e1", "source": "here"}
    assert payload.webhook_id(builders.event(**same), "s1") != payload.webhook_id(builders.event(**same | other), "s1")


def test_each_subscription_has_its_own_webhook_id():
    event = builders.event()
    assert payload.webhook_id(event, "s1") != payload.webhook_id(event, "s2")


def test_events_without_attributes_are_unchanged():
    event = builders.event(attributes=())
    assert b"attributes" not in payload.content(event, ContentMode.STANDARD).body
    assert payload.content(event, ContentMode.CLOUDEVENTS_BINARY).headers.count(b"\r\n") == 7


@pytest.mark.parametrize("name", ["id", "ID", "a\r\nwebhook-id: msg_1", "", "data", "a b"])
def test_an_invalid_attribute_name_never_becomes_a_header(name):
    event = builders.event(attributes=((name, "x"),))
    with pytest.raises(ValueError, match="another header"):
        payload.content(event, ContentMode.CLOUDEVENTS_BINARY)


def test_no_attribute_replaces_one_of_ours():
    event = builders.event(attributes=(("id", "forged"), ("time", "forged"), ("data", "forged")))
    structured = payload.content(event, ContentMode.CLOUDEVENTS_STRUCTURED).body
    assert b"forged" not in orjson.dumps(orjson.loads(structured))
    standard = orjson.loads(payload.content(event, ContentMode.STANDARD).body)
    assert (standard["id"], standard["data"]) == (event.event_id, {"amount": 5})


def test_attribute_values_are_percent_encoded():
    event = builders.event(attributes=(("subject", 'a "b" 100% é\r\nx'), ("sampled", True), ("sequence", -5)))
    lines = payload.content(event, ContentMode.CLOUDEVENTS_BINARY).headers.decode().split("\r\n")
    assert lines[-4:] == ["ce-subject: a%20%22b%22%20100%25%20%C3%A9%0D%0Ax", "ce-sampled: true", "ce-sequence: -5", ""]
