"""The explanation of a match names the rule that decides whether an event is due to a subscription."""

import pytest

from delivery.payload_form import Opaque, PayloadForm
from delivery.registry_model import EndpointStatus, SubscriptionStatus
from delivery.webhooks.routing import explain
from delivery.webhooks.routing.explain import Rule
from tests.support import builders


@pytest.mark.parametrize(
    ("subscription", "endpoint", "rule"),
    [
        ({}, {}, Rule.MATCHES),
        ({"event_type": "order.*"}, {}, Rule.MATCHES),
        ({"event_type": "order"}, {}, Rule.EVENT_TYPE),
        ({"scope": builders.scope("t2")}, {}, Rule.SCOPE),
        ({"scope": builders.scope(without_tenants=frozenset({"t1"}))}, {}, Rule.EXCLUSION),
        ({"filter_pattern": {"data": {"amount": [6]}}}, {}, Rule.FILTER),
        ({"filter_pattern": {"subject": [{"prefix": "orders/"}]}}, {}, Rule.FILTER),
        ({"filter_pattern": {"data": {"amount": [6]}}, "fault": "filter"}, {}, Rule.QUARANTINED),
        ({}, {"fault": "url"}, Rule.QUARANTINED),
        ({"status": SubscriptionStatus.PAUSED}, {"status": EndpointStatus.PAUSED}, Rule.SUBSCRIPTION_PAUSED),
        ({}, {"status": EndpointStatus.PAUSED}, Rule.ENDPOINT_PAUSED),
        ({}, {"status": EndpointStatus.DISABLED}, Rule.ENDPOINT_DISABLED),
    ],
)
def test_the_first_rule_that_decides_is_named(subscription, endpoint, rule):
    verdict = explain.explain(builders.event(), builders.subscription(**subscription), builders.endpoint(**endpoint))
    assert verdict.rule is rule
    # Regression: the API said that the endpoint would get every due event. A due event may be skipped or wait.
    assert verdict.is_due is (rule not in {Rule.EVENT_TYPE, Rule.SCOPE, Rule.EXCLUSION, Rule.FILTER})


@pytest.mark.parametrize(
    ("pattern", "detail"),
    [
        ({"data": {"amount": [6], "kind": [{"exists": False}]}, "type": ["x"]}, "the filter does not take data.amount, type"),
        ({"data": {"$or": [{"amount": [6]}, {"amount": [7]}]}}, "the filter does not take data.$or"),
        (
            {"data": {f"field{number}": ["a"] for number in range(31)}},
            "the filter does not take the event; the filter has more than 30 fields, so none is named",
        ),
        (
            {"data": {"lines": {"sku": ["a"], "count": [2]}}},
            "each field matches somewhere, but no one element of an array matches all of them",
        ),
    ],
)
def test_the_fields_that_a_filter_fails_on_are_named(pattern, detail):
    event = builders.event(content={"amount": 5, "lines": [{"sku": "a", "count": 1}, {"sku": "b", "count": 2}]})
    assert explain.explain(event, builders.subscription(filter_pattern=pattern), builders.endpoint()).detail == detail


def test_a_filter_that_needs_too_many_tests_is_named():
    event = builders.event(content={"tags": ["new"] * 10_000})
    costly = builders.subscription(filter_pattern={"data": {"tags": [{"wildcard": f"*x{number}*"} for number in range(100)]}})

    detail = explain.explain(event, costly, builders.endpoint()).detail
    assert detail.startswith("the filter needs more than 1,000,000 tests of array elements for the event")


@pytest.mark.parametrize(
    ("opaque", "content", "reason"),
    [
        (Opaque(PayloadForm.BYTES, "application/avro"), {}, "the payload is application/avro: a filter sees no field of it"),
        (Opaque(PayloadForm.TEXT, "text/xml"), "<a/>", "the payload is text/xml: a filter sees it as one text, data"),
        (Opaque(PayloadForm.NONE), {}, "the event has no payload"),
    ],
)
def test_a_payload_without_fields_is_named(opaque, content, reason):
    event = builders.event(opaque=opaque, content=content)
    through = builders.subscription(filter_pattern={"data": {"amount": [5]}})
    assert explain.explain(event, through, builders.endpoint()).detail == f"the filter does not take data.amount; {reason}"
