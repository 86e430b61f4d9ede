"""Valid and invalid requests generated from the OpenAPI document: no answer has a status 5xx, and all are as documented.

A seed makes them. Hypothesis also takes values from the modules that are loaded, so a run with other tests may make others.
`make test-all` tries more of them. `SEED=2 EXAMPLES=200 pytest tests/integration/api/test_fuzzing.py` looks for others, and for
longer.
"""

import contextlib
import json
import os
from urllib import parse

import jsonschema
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.core.parameters import ParameterLocation
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from delivery.config import settings as settings_of_the_platform
from subscriptions_db.api.documents import openapi
from subscriptions_db.api.server.route_table import ROUTES
from tests.integration.api import world
from tests.support import thoroughness

pytestmark = pytest.mark.integration

SCHEMA = schemathesis.openapi.from_dict(openapi.document(ROUTES))
EXAMPLES = int(os.environ.get("EXAMPLES", thoroughness.cases(4, thorough=24)))
"""For each route and kind of request. Raise it to look for more."""
SEED = int(os.environ.get("SEED", "1"))
KNOWN = {"endpoint_id": "acme-orders", "subscription_id": "acme-all", "customer_id": "acme", "tenant_id": "t1",
         "letter_id": world.LETTER, "consumer_id": world.CONSUMER, "event_type_id": "order.created",
         "replay_id": world.REPLAY, "attempt_id": world.ATTEMPT, "webhook_id": world.WEBHOOK_ID,
         "token": "0" * 64}  # fmt: skip


@pytest.fixture(scope="module")
def served(postgres):
    # The brokers are in the client itself. None has the topic of an invented event type.
    kafka = settings_of_the_platform.KafkaSettings(librdkafka_options={"test.mock.num.brokers": "1"})
    with world.served(postgres, max_poll_s=0.01, kafka=kafka) as made:
        yield made


def is_wrong_as_sent(case, url):
    """Return True if a request violates the OpenAPI document in the form in which it arrived.

    In a query everything is text, so an array is valid where a text is expected. A wrong API key does not count: it was
    replaced.
    """
    parameters = case.operation.definition.raw["parameters"]
    wrong = {place for place, part in case.meta.components.items() if part.mode is GenerationMode.NEGATIVE}
    if wrong & {ParameterLocation.BODY, ParameterLocation.PATH}:
        return True
    if ParameterLocation.HEADER in wrong and any(parameter["in"] == "header" for parameter in parameters):
        return True
    sent = parse.parse_qsl(parse.urlsplit(url).query, keep_blank_values=True)
    schemas = {parameter["name"]: parameter["schema"] for parameter in parameters if parameter["in"] == "query"}
    is_right = len(dict(sent)) == len(sent) and all(name in schemas and takes(schemas[name], text) for name, text in sent)
    return not is_right


def takes(schema, text):
    """Return True if the text of a query parameter matches a schema, as text or parsed as JSON."""
    values = [text]
    with contextlib.suppress(ValueError):
        values.append(json.loads(text))
    return any(jsonschema.Draft202012Validator(schema).is_valid(value) for value in values)


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_any_request_is_answered_as_documented(served, route, mode):
    operation = SCHEMA[route.path][route.method]
    wanted = settings(
        max_examples=EXAMPLES, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip

    print(f"made by SEED={SEED} EXAMPLES={EXAMPLES}")  # noqa: T201  # pytest shows it with a failure

    @seed(SEED)
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
            if response.status_code == 413:
                excluded.append(negative_data_rejection)  # it does not know the status as a refusal
            if not is_wrong_as_sent(case, response.request.url):
                excluded.append(negative_data_rejection)
            case.validate_response(response, excluded_checks=excluded)

    asked()
