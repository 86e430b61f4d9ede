"""Requests made from the OpenAPI document, right and wrong ones: no answer is one of 5xx, and all are as documented."""

import os

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from subscriptions_db.api import openapi
from subscriptions_db.api.table import ROUTES
from tests.integration.api import world

pytestmark = pytest.mark.integration

SCHEMA = schemathesis.openapi.from_dict(openapi.document(ROUTES))
EXAMPLES = int(os.environ.get("EXAMPLES", "5"))
"""For each route and kind of request. Raise it to look for more."""
KNOWN = {"endpoint_id": "acme-orders", "subscription_id": "acme-all", "customer_id": "acme", "tenant_id": "t1",
         "letter_id": world.LETTER, "consumer_id": world.CONSUMER, "event_type_id": "order.created",
         "replay_id": world.REPLAY, "attempt_id": world.ATTEMPT, "token": "0" * 64}  # fmt: skip


@pytest.fixture(scope="module")
def served(postgres):
    with world.served(postgres, max_poll_s=0.01) as made:
        yield made


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_whatever_comes_is_answered_as_documented(served, route, mode):
    operation = SCHEMA[route.path][route.method]
    wanted = settings(
        max_examples=EXAMPLES, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip

    @wanted
    @given(case=operation.as_strategy(generation_mode=mode))
    def asked(case):
        for key in ("operator", "acme"):
            # There are rules that no schema tells: whether an address is allowed, a certificate is one, a row is there.
            excluded = [positive_data_acceptance]
            if key == "acme" and route.method != "DELETE" and route.name != "testEndpoint":  # which would send
                case.path_parameters = {name: KNOWN[name] for name in case.path_parameters}
                excluded.append(negative_data_rejection)  # what was wrong may have been the path
            headers = {"Authorization": f"Bearer {served.keys[key]}"}
            response = case.call(base_url=f"http://127.0.0.1:{served.port}", headers=headers)
            assert response.status_code < 500, (response.status_code, response.text)
            if response.status_code == 400:
                continue  # of the HTTP server itself: a head beyond its bounds
            case.validate_response(response, excluded_checks=excluded)

    asked()
