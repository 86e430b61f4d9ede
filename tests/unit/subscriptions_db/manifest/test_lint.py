"""The lint warns about subscriptions that probably match no event, with the path of the field."""

import pytest

from subscriptions_db.manifest import lint

KNOWN = {"order.created", "order.paid", "invoice.sent"}


def said(problems):
    return [f"{warning.path}: {warning.problem}" for warning in problems]


@pytest.mark.parametrize(
    "pattern",
    [
        {"data": {"anything": [1]}},
        {name: ["x"] for name in lint.ROOTS},
        {"$or": [{"type": ["a"]}, {"data": {"b": ["c"]}}]},
        {"data": {"$or": [{"a": [1]}, {"b": [2]}]}},
    ],
)
def test_a_filter_on_fields_of_events_has_no_warning(pattern):
    assert said(lint.filter_roots(pattern)) == []


@pytest.mark.parametrize(
    ("pattern", "path", "meant"),
    [
        ({"amount": [{"numeric": [">", 5]}]}, "filter.amount", "attribute amount; did you mean data.amount?"),
        ({"customer": {"id": [1]}}, "filter.customer", "is not a field of an event"),
        ({"order_id": ["7"]}, "filter.order_id", "did you mean data.order_id?"),
        ({"tenantid": ["7"]}, "filter.tenantid", "did you mean tenant_id?"),
        ({"dat": {"a": [1]}}, "filter.dat", "did you mean data?"),
        (
            {"data": {"a": [1]}, "$or": [{"id": ["1"]}, {"status": ["paid"]}]},
            "filter.$or[1].status",
            "did you mean data.status?",
        ),
    ],
)
def test_a_filter_on_an_unknown_field_suggests_a_known_one(pattern, path, meant):
    [warning] = said(lint.filter_roots(pattern))
    assert warning.startswith(f"{path}: ")
    assert meant in warning


@pytest.mark.parametrize("wanted", ["*", "order.*", "order.paid", "fanout.endpoint.disabled", "fanout.*"])
def test_an_event_type_that_matches_a_known_one_has_no_warning(wanted):
    assert said(lint.event_type(wanted, KNOWN, has_topics=True)) == []


def test_an_unknown_event_type_suggests_a_similar_one():
    [warning] = said(lint.event_type("order.creatd", KNOWN, has_topics=True))
    assert warning.startswith("event_type: order.creatd matches no event type of the catalogue and no topic")
    assert warning.endswith("; did you mean order.created?")
    assert len(said(lint.event_type("shipment.*", KNOWN, has_topics=True))) == 1


def test_without_known_event_types_there_is_no_warning():
    assert said(lint.event_type("order.creatd", frozenset(), has_topics=False)) == []


def test_the_warning_names_topics_only_if_they_are_known():
    """Regression: the API, which knows no topics, said that an event type matches none."""
    [warning] = said(lint.event_type("shipment.sent", KNOWN, has_topics=False))
    assert warning == "event_type: shipment.sent matches no event type of the catalogue: correct it, or register the type"
