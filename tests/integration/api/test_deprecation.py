"""Operations that exist in this test only: each answer of a deprecated one says so, as the OpenAPI document does."""

import datetime as dt
from typing import Annotated

import pydantic
import pytest

from subscriptions_db.api.contract import deprecation, problems, routes
from subscriptions_db.api.contract.deprecation import Deprecation
from subscriptions_db.api.contract.routes import NoParameters, Route
from subscriptions_db.api.documents import openapi
from subscriptions_db.api.server import route_table
from tests.integration.api import world

pytestmark = pytest.mark.integration

OF_OPERATION, OF_FIELD, OF_PARAMETER = (
    Deprecation(since=dt.date(2027, month, 1), sunset=dt.date(2028, month, 1), link=f"https://docs.example.com/{name}")
    for month, name in ((1, "operation"), (2, "field"), (3, "parameter"))
)
NAMES = ("deprecation", "sunset", "link")


class Query(NoParameters):
    colour: Annotated[str, OF_PARAMETER] = ""
    """A parameter."""


class Body(NoParameters):
    size: Annotated[int, OF_FIELD] = 0
    """A field."""
    refused: bool = False
    """Let the handler refuse the request."""


class Answer(pydantic.BaseModel):
    path: str


def answer(call):
    if isinstance(call.body, Body) and call.body.refused:
        raise problems.Refused(409, "refused")
    return Answer(path="here")


READ = Route(
    method="GET", path="/v1/tenants/{tenant_id}/old", name="readOld", summary="Read.", scopes=routes.ADMINS, handler=answer,
    answer=Answer, deprecation=OF_OPERATION,
)  # fmt: skip
CHANGE = Route(
    method="POST", path="/v1/tenants/{tenant_id}/new", name="changeNew", summary="Change.", scopes=routes.ADMINS,
    handler=answer, query=Query, body=Body, answer=Answer, is_change=True,
)  # fmt: skip


@pytest.fixture(scope="module")
def served(postgres):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(route_table, "ROUTES", (*route_table.ROUTES, READ, CHANGE))
        with world.served(postgres) as made:
            yield made


def headers_of(answered):
    return {name: answered.headers[name] for name in NAMES if name in answered.headers}


def test_every_answer_of_a_deprecated_operation_has_the_headers(served, acme, poller):
    path = "/v1/tenants/t1/old"
    anyone = served.client(None)
    answers = [
        acme.get(path), acme.ask("HEAD", path), acme.get(f"{path}?colour=red"), poller.get(path), anyone.get(path),
    ]  # fmt: skip
    assert [answered.status for answered in answers] == [200, 200, 422, 403, 401]
    for answered in answers:
        assert headers_of(answered) == deprecation.headers({OF_OPERATION})


@pytest.mark.parametrize(
    ("query", "body", "status", "used"),
    [
        ("", {}, 200, set()),
        ("", {"size": 1}, 200, {OF_FIELD}),
        ("", {"size": 1, "refused": True}, 409, {OF_FIELD}),
        ("?colour=red", {"size": 1}, 200, {OF_FIELD, OF_PARAMETER}),
    ],
)
def test_the_answer_to_a_request_with_a_deprecated_field_says_so(acme, query, body, status, used):
    answered = acme.post(f"/v1/tenants/t1/new{query}", body)
    assert answered.status == status
    assert headers_of(answered) == deprecation.headers(used)


def test_the_repeat_of_a_request_says_so_too(acme):
    for _ in range(2):
        answered = acme.post("/v1/tenants/t1/new", {"size": 1}, idempotency_key="k1")
        assert headers_of(answered) == deprecation.headers({OF_FIELD})


@pytest.mark.parametrize("path", ["/v1/endpoints", "/v1/endpoints/nobody", "/nowhere", "/healthz"])
def test_other_answers_have_no_such_headers(acme, path):
    assert headers_of(acme.get(path)) == {}


def test_the_openapi_document_marks_operations_parameters_and_fields():
    document = openapi.document([READ, CHANGE])
    read, change = document["paths"][READ.path]["get"], document["paths"][CHANGE.path]["post"]
    assert (read["deprecated"], change.get("deprecated")) == (True, None)
    assert "removed on 2028-01-01 at the earliest: https://docs.example.com/operation" in read["description"]
    assert {"Deprecation", "Sunset", "Link"} <= read["responses"]["200"]["headers"].keys()
    [colour] = [parameter for parameter in change["parameters"] if parameter["name"] == "colour"]
    assert (colour["deprecated"], "deprecated" in colour["schema"]) == (True, False)
    assert document["components"]["schemas"]["Body"]["properties"]["size"]["deprecated"]
