"""The OpenAPI document is valid, and agrees with the declaration of each route."""

import re

import orjson
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from subscriptions_db.api.contract import problem_types, problems, schemas
from subscriptions_db.api.documents import openapi
from subscriptions_db.api.server.route_table import ROUTES
from subscriptions_db.manifest import manifest

DOCUMENT = openapi.document(ROUTES)


def test_the_document_is_valid_openapi():
    assert list(OpenAPIV31SpecValidator(orjson.loads(orjson.dumps(DOCUMENT))).iter_errors()) == []


def test_every_route_is_in_the_document_once():
    operations = [operation for path in DOCUMENT["paths"].values() for operation in path.values()]
    assert sorted(operation["operationId"] for operation in operations) == sorted(route.name for route in ROUTES)
    assert len({route.name for route in ROUTES}) == len(ROUTES)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_only_admins_may_change_and_changes_are_idempotent(route):
    operation = DOCUMENT["paths"][route.path][route.method.lower()]
    scopes = {scope for requirement in operation["security"] for scope in requirement["api_key"]}
    names = {parameter["name"] for parameter in operation["parameters"]}
    assert route.is_change == ("Idempotency-Key" in names)
    is_registering = route.path.startswith(("/v1/endpoints", "/v1/subscriptions"))
    changing = {"operator", "customer_admin", "write_only"} | ({"registrar"} if is_registering else set())
    assert route.is_change <= (scopes <= changing)
    assert route.is_change or route.method in {"GET", "POST"}
    assert not (route.is_change and route.is_poll)


@pytest.mark.parametrize("kind", [schemas.Endpoint, schemas.CreatedEndpoint, schemas.Endpoints, schemas.Subscription])
def test_no_answer_type_has_a_field_for_a_stored_secret(kind):
    text = orjson.dumps(kind.model_json_schema(mode="serialization"))
    assert b'"secret"' not in text
    assert b'"key"' not in text


def test_request_types_have_the_fields_of_the_manifest():
    assert schemas.EndpointChanges.model_fields.keys() == manifest.EndpointFields.model_fields.keys()
    assert schemas.NewEndpoint.model_fields.keys() <= manifest.ManifestEndpoint.model_fields.keys()
    assert schemas.NewSubscription.model_fields.keys() <= manifest.ManifestSubscription.model_fields.keys()


def test_the_document_has_no_names_of_python_modules():
    """Regression: two classes with one name in two modules got the names of their modules in the document."""
    text = orjson.dumps(DOCUMENT).decode()
    assert not re.search(r"subscriptions_db|delivery\.webhooks|__", text)
    assert all(name.isalnum() for name in DOCUMENT["components"]["schemas"])


def test_every_operation_has_a_described_tag_and_each_tag_an_operation():
    described = {tag["name"] for tag in DOCUMENT["tags"] if tag["description"]}
    operations = [operation for path in DOCUMENT["paths"].values() for operation in path.values()]
    assert {tag for operation in operations for tag in operation["tags"]} == described


def test_every_description_names_the_scopes_or_says_that_no_key_is_needed():
    for route in ROUTES:
        description = DOCUMENT["paths"][route.path][route.method.lower()]["description"]
        assert route.is_open == description.startswith("Needs no API key")
        assert all(f"`{scope}`" in description for scope in route.scopes)


@pytest.mark.parametrize(("public_url", "server"), [("", "/"), ("https://fanout.example.com", "https://fanout.example.com")])
def test_the_server_of_the_document_is_its_own_or_the_public_one(public_url, server):
    assert openapi.document(ROUTES, public_url)["servers"][0]["url"] == server


@pytest.mark.parametrize(
    ("status", "word"), [(403, "publish"), (408, "events"), (413, "1,000 events"), (429, "events"), (503, "Kafka")]
)
def test_the_types_of_problems_describe_refusals_of_events(status, word):
    assert str(status) in DOCUMENT["paths"]["/v1/events"]["post"]["responses"]
    described = problem_types.TYPES[problems.TITLES[status][0]]
    assert word in described.meaning


def test_the_test_of_an_endpoint_may_be_refused_by_its_state():
    """Regression: the document lacked the 409 of a test event to a receiver that has not permitted deliveries."""
    assert "409" in DOCUMENT["paths"]["/v1/endpoints/{endpoint_id}/test"]["post"]["responses"]


def test_headers_of_the_rate_count_requests_with_one_event_for_publishers():
    headers = DOCUMENT["paths"]["/v1/events"]["post"]["responses"]["202"]["headers"]
    assert "publishEvents, requests with one event each" in headers["RateLimit-Limit"]["description"]


def test_a_put_is_documented_as_created_or_replaced():
    for path in ("/v1/customers/{customer_id}", "/v1/tenants/{tenant_id}", "/v1/event-types/{event_type_id}"):
        responses = DOCUMENT["paths"][path]["put"]["responses"]
        assert "Location" in responses["201"]["headers"]
        assert "Location" not in responses["200"]["headers"]
        assert responses["201"]["content"] == responses["200"]["content"]


def test_the_answer_to_a_write_only_key_is_documented():
    created = DOCUMENT["paths"]["/v1/endpoints"]["post"]["responses"]
    assert "content" not in created["204"]
    assert created["204"]["headers"].keys() == created["201"]["headers"].keys() - {"ETag"}
    assert "204" not in DOCUMENT["paths"]["/v1/endpoints/bulk"]["post"]["responses"]


def test_every_property_of_a_schema_has_a_description():
    """Regression: no property had one, although the fields have docstrings."""
    properties = {
        f"{schema}.{name}": part
        for schema, described in DOCUMENT["components"]["schemas"].items()
        for name, part in described.get("properties", {}).items()
    }
    assert len(properties) > 500
    assert [name for name, part in properties.items() if not part.get("description")] == []


def test_every_parameter_of_an_operation_has_a_description():
    parameters = {
        f"{operation['operationId']} {parameter['name']}": parameter
        for path in DOCUMENT["paths"].values()
        for operation in path.values()
        for parameter in operation["parameters"]
    }
    assert len(parameters) > 200
    assert [name for name, parameter in parameters.items() if not parameter.get("description")] == []
