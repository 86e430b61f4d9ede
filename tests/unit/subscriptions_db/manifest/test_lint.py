"""A registration that will match nothing is warned of, by the field that is wrong."""

import pytest

from subscriptions_db.manifest import lint

KNOWN = {"order.created", "order.paid", "invoice.sent"}


def said(problems):
    return [f"{one.path}: {one.problem}" for one in problems]


@pytest.mark.parametrize(
    "pattern",
    [
        {"data": {"anything": [1]}},
        {name: ["x"] for name in lint.ROOTS},
        {"$or": [{"type": ["a"]}, {"data": {"b": ["c"]}}]},
        {"data": {"$or": [{"a": [1]}, {"b": [2]}]}},
    ],
)
def test_a_filter_on_fields_of_events_is_not_doubtful(pattern):
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
def test_a_filter_on_another_root_says_what_may_be_meant(pattern, path, meant):
    [one] = said(lint.filter_roots(pattern))
    assert one.startswith(f"{path}: ")
    assert meant in one


@pytest.mark.parametrize("wanted", ["*", "order.*", "order.paid", "fanout.endpoint.disabled", "fanout.*"])
def test_an_event_type_that_takes_a_known_one_is_not_doubtful(wanted):
    assert said(lint.event_type(wanted, KNOWN)) == []


def test_an_event_type_that_nobody_knows_says_which_is_close():
    [one] = said(lint.event_type("order.creatd", KNOWN))
    assert one.startswith("event_type: order.creatd matches no event type of the catalogue and no topic")
    assert one.endswith("; did you mean order.created?")
    assert len(said(lint.event_type("shipment.*", KNOWN))) == 1


def test_where_no_event_type_is_known_none_is_doubtful():
    assert said(lint.event_type("order.creatd", frozenset())) == []
