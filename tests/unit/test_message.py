"""What a customer receives."""

import orjson
import pytest

from delivery.model import ContentMode
from delivery.webhooks import message
from tests import builders


def test_the_payload_stands_in_the_body_byte_for_byte():
    event = builders.event(data=b'{ "amount" : 1.50 }', sub_tenant_id="100")
    body = message.content(event, ContentMode.STANDARD).body
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


def test_the_webhook_id_is_stable_and_safe_in_a_header_whatever_the_event_id_holds():
    event = builders.event(event_id="a.b\0é" * 50)
    first = message.webhook_id(event, "s1")
    assert first == message.webhook_id(event, "s1")
    assert first.removeprefix("msg_").isalnum()
    assert len(first) == len("msg_") + 32


@pytest.mark.parametrize("other", [{"event_id": "e2"}, {"source": "elsewhere"}])
def test_different_events_have_different_webhook_ids(other):
    same = {"event_id": "e1", "source": "here"}
    assert message.webhook_id(builders.event(**same), "s1") != message.webhook_id(builders.event(**same | other), "s1")


def test_two_subscriptions_to_one_event_have_different_webhook_ids():
    event = builders.event()
    assert message.webhook_id(event, "s1") != message.webhook_id(event, "s2")
