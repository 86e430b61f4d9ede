"""Every operation has an example, in the OpenAPI document too, and the examples have the form that the document states."""

import jsonschema
import pytest

from subscriptions_db.api.contract.routes import RawBytes
from subscriptions_db.api.documents import openapi
from subscriptions_db.api.examples.example_table import EXAMPLES
from subscriptions_db.api.server.route_table import ROUTES
from tests.support import api_answers

DOCUMENT = openapi.document(ROUTES)


def test_the_examples_are_those_of_the_operations():
    assert EXAMPLES.keys() == {route.name for route in ROUTES}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_every_operation_has_examples_in_the_document(route):
    operation, example = DOCUMENT["paths"][route.path][route.method.lower()], EXAMPLES[route.name]
    bodies = operation.get("requestBody", {"content": {}})["content"]
    assert {media: content["example"] for media, content in bodies.items()} == (
        dict(example.bodies) or ({"application/json": example.body} if route.body else {})
    )
    answers = operation["responses"][str(route.status)].get("content", {})
    assert [content["example"] for content in answers.values()] == ([example.answer] if route.answer else [])
    shown = {parameter["name"]: parameter["example"] for parameter in operation["parameters"] if "example" in parameter}
    assert shown.keys() == example.query.keys() | {name for name in shown if f"{{{name}}}" in route.path}
    assert all(name in shown for name in api_answers.path_parameters(route))


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_an_example_fits_the_schemas_and_has_no_other_fields(route):
    operation, example = DOCUMENT["paths"][route.path][route.method.lower()], EXAMPLES[route.name]
    for content in operation.get("requestBody", {"content": {}})["content"].values():
        api_answers.require_fit(DOCUMENT, content["schema"], content["example"])
    for parameter in operation["parameters"]:
        if "example" in parameter:
            jsonschema.validate(parameter["example"], parameter["schema"])
    if route.answer not in {None, RawBytes}:
        api_answers.require_fit(DOCUMENT, api_answers.answer_schema(DOCUMENT, route, route.status), example.answer)


def test_an_example_with_an_unknown_field_does_not_fit():
    """So a check that passed everything would not pass for one that found nothing."""
    [route] = [route for route in ROUTES if route.name == "getEndpoint"]
    schema = api_answers.answer_schema(DOCUMENT, route, 200)
    with pytest.raises(jsonschema.ValidationError, match="colour"):
        api_answers.require_fit(DOCUMENT, schema, EXAMPLES["getEndpoint"].answer | {"colour": "red"})
    with pytest.raises(jsonschema.ValidationError, match="is a required property"):
        api_answers.require_fit(DOCUMENT, schema, {"id": "ep_1"})


def test_the_example_of_each_problem_fits_its_schema():
    schema = {"$ref": "#/components/schemas/Problem"}
    for example in DOCUMENT["components"]["examples"].values():
        api_answers.require_fit(DOCUMENT, schema, example["value"])
