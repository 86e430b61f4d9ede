"""Requests to the API are distinguished by their content, and their paths are checked first."""

import pytest
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict

from subscriptions_db.api.contract import etags, problems
from subscriptions_db.api.contract.principals import Principal, Scope
from subscriptions_db.api.server import app, handler
from subscriptions_db.api.server.route_table import ROUTES

BY_NAME = {route.name: route for route in ROUTES}
ADMIN = Principal("k1", "c1", Scope.CUSTOMER_ADMIN)


def digest(conditions=etags.UNCONDITIONAL):
    request = handler.ApiRequest(principal=ADMIN, path={"endpoint_id": "e1"}, query={}, body=b"{}", conditions=conditions)
    return request.digest(BY_NAME["updateEndpoint"])


def test_requests_with_other_conditions_are_not_repeats():
    """Regression: a request with another `If-Match` got the stored answer of the first."""
    conditions = [etags.UNCONDITIONAL, etags.Conditions('"a"'), etags.Conditions('"b"'), etags.Conditions(None, '"a"')]
    assert len({digest(each) for each in conditions}) == len(conditions)
    assert digest(etags.Conditions('"a"')) == digest(etags.Conditions('"a"'))


def test_requests_without_conditions_have_the_digest_of_earlier_versions():
    """Their answers are stored for a day, so they must be found after an upgrade."""
    assert digest().hex() == "8de80b97f93742ca1b21b044ff3763e18edfc7befe46cf08d1dab3866b7349e5"


@pytest.mark.parametrize(
    ("route", "parameter", "kind"),
    [
        ("getDeadLetter", "letter_id", "dead letter"),
        ("getDelivery", "webhook_id", "delivery"),
        ("getEventType", "event_type_id", "event type"),
        ("getEndpoint", "endpoint_id", "endpoint"),
    ],
)
def test_an_invalid_id_in_a_path_is_named_by_its_kind(route, parameter, kind):
    """Regression: an invalid id of a dead letter was answered with `there is no such letter`."""
    request = make_mocked_request("GET", "/", match_info={parameter: "a b"})
    with pytest.raises(problems.Refused) as refused:
        app._path(BY_NAME[route], request)
    detail = f"there is no such {kind}, or the key may not see it: check the id"
    assert (refused.value.problem.status, refused.value.problem.detail) == (404, detail)


def test_two_idempotency_keys_are_refused():
    """Regression: a key in a second line was ignored."""
    headers = [("Idempotency-Key", "first"), ("Idempotency-Key", "second")]
    with pytest.raises(problems.Refused) as refused:
        app._idempotency_key(make_mocked_request("POST", "/", headers=CIMultiDict(headers)))
    assert refused.value.problem.status == 422
