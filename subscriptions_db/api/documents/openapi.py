"""Build the OpenAPI 3.1 document from the route declarations.

Runs in the API and in `fanout` commands. Pure.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from importlib import metadata
from typing import Any

import pydantic
from pydantic.json_schema import models_json_schema

from subscriptions_db.api.contract import problem_types, problems
from subscriptions_db.api.contract.routes import RawBytes, Route
from subscriptions_db.api.examples.example import PATH_PARAMETERS, Example
from subscriptions_db.api.examples.example_table import EXAMPLES

REF = "#/components/schemas/{model}"
ID_PATTERN = "^[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}$"
_PARAMETER = re.compile(r"\{(\w+)\}")
DESCRIPTION = """\
Publish events, register endpoints and subscriptions, and read the results of their deliveries. Errors are problem documents
(RFC 9457) that name the invalid fields. Lists are paged with cursors. A change may carry an `Idempotency-Key`: a repeat within
a day changes nothing and returns the first answer. A secret that was shown once is null in a repeated answer."""

_KEY_HEADERS = {
    "RateLimit-Limit": {
        "description": "Requests that the key may send at once. For publishEvents, requests with one event each. The number is "
        "that of the limit that refuses first: of the key, or of a tenant.",
        "schema": {"type": "integer"},
    },
    "RateLimit-Remaining": {"description": "Requests that the key may still send at once now.", "schema": {"type": "integer"}},
    "RateLimit-Reset": {"description": "Seconds until the whole limit may be sent at once.", "schema": {"type": "integer"}},
    "Fanout-Key-Expires-At": {
        "description": "When the API key expires; only if it expires within 14 days.",
        "schema": {"type": "string", "format": "date-time"},
    },
}

_DEPRECATION_HEADERS = {
    "Deprecation": {"description": "The time of the deprecation: `@` and Unix seconds.", "schema": {"type": "string"}},
    "Sunset": {"description": "The earliest time of the removal.", "schema": {"type": "string"}},
    "Link": {"description": "The page that says what to use in place of the deprecated thing.", "schema": {"type": "string"}},
}

_TAGS = {
    "customers": "Owners of endpoints, with their grants and quotas.",
    "tenants": "Organisations whose events flow through Kafka.",
    "endpoints": "URLs that take deliveries, with their secrets, status, tests and statistics.",
    "subscriptions": "The events that go to an endpoint.",
    "event-types": "The catalogue of event types. It does not affect delivery.",
    "events": "Publish events over HTTP.",
    "deliveries": "Events due to a subscription, each with its status.",
    "attempts": "Requests to endpoints, and resends of their deliveries.",
    "statistics": "Counts and percentiles of a customer.",
    "replays": "Requests to deliver past events again: those of a time range, or of one delivery.",
    "dead-letters": "Deliveries that were given up.",
    "dead-letter-consumers": "Named groups of pollers that share the dead letters of a customer.",
    "audit-log": "Changes with their authors.",
    "snapshot": "The registry, whole or as its changes, for executors.",
}
"""The first part of a path below /v1 → the description of its tag."""

_PATH_PARAMETERS = {
    "attempt_id": "The id of the attempt.",
    "consumer_id": "The name of the consumer.",
    "customer_id": "The id of the customer.",
    "endpoint_id": "The id of the endpoint.",
    "event_type_id": "The event type, such as `order.created`.",
    "letter_id": "The id of the dead letter.",
    "replay_id": "The id of the replay.",
    "subscription_id": "The id of the subscription.",
    "tenant_id": "The id of the tenant.",
    "token": "The token of the callback URL that the receiver got.",
    "webhook_id": "The `webhook-id` of the delivery.",
}
"""The name of a path parameter → its description."""
_HEADERS = {
    "Idempotency-Key": "A text of the client, unique for the change. A repeat within a day changes nothing.",
    "If-Match": "Change the resource only if it has one of these ETags, or exists (`*`).",
    "If-None-Match": "Answer or change only if the resource has none of these ETags; with `*`, only if it does not exist.",
    "WebHook-Allowed-Rate": "Requests a minute that the receiver permits, or `*` for any number.",
}
"""The name of a header of requests → its description."""


def document(routes: Iterable[Route], public_url: str = "") -> dict[str, Any]:
    """Return the OpenAPI document of these routes, served at `public_url`. Empty: at the root of the document's own server."""
    routes = list(routes)
    models: list[tuple[type[pydantic.BaseModel], Any]] = [(problems.Problem, "serialization")]
    models += [(model, "validation") for route in routes for model in _bodies(route).values()]
    models += [
        (route.answer, "serialization") for route in routes if route.answer and issubclass(route.answer, pydantic.BaseModel)
    ]
    refs, definitions = _schemas(tuple(dict.fromkeys(models)))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, refs)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "fanout",
            "version": metadata.version("fanout"),
            "description": DESCRIPTION,
            "contact": {"name": "The operator of this platform"},
        },
        "servers": [{"url": public_url or "/", "description": "This platform."}],
        "tags": [{"name": name, "description": described} for name, described in _TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": definitions.get("$defs", {}),
            "examples": _problem_examples(routes, public_url),
            "securitySchemes": {
                "api_key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An API key (`fk_…`) of `fanout api-keys`. Operators may send a token of their provider.",
                }
            },
        },
    }


@functools.cache  # takes 0.1 s of CPU
def _schemas(models: tuple[tuple[type[pydantic.BaseModel], Any], ...]) -> Any:
    """Return the references to the JSON Schemas of `models`, and the JSON Schemas. Callers must not change the result."""
    return models_json_schema(models, ref_template=REF)


def _operation(route: Route, refs: Any) -> dict[str, Any]:
    example = EXAMPLES.get(route.name, Example())
    answer = {} if example.answer is None else {"example": example.answer}
    success: dict[str, Any] = {"description": "Done.", "headers": {"X-Request-Id": {"schema": {"type": "string"}}}}
    if not route.is_open:
        success["headers"] |= _KEY_HEADERS
    if route.deprecation is not None:
        success["headers"] |= _DEPRECATION_HEADERS
    if route.has_etag or route.is_conditional:
        success["headers"]["ETag"] = {"schema": {"type": "string"}}
    if route.answer is RawBytes:
        success["content"] = {"application/octet-stream": answer}
    elif route.answer:
        success["content"] = {"application/json": {"schema": refs[route.answer, "serialization"]} | answer}
    successes = {str(route.status): success}
    if route.location is not None:
        headers = success["headers"] | {"Location": {"schema": {"type": "string"}}}
        successes["201"] = success | {"description": "Created.", "headers": headers}
    if route.is_silent_to_writers:
        headers = {name: shown for name, shown in successes[max(successes)]["headers"].items() if name != "ETag"}
        successes["204"] = {"description": "Done. A key of scope `write_only` gets no answer to read.", "headers": headers}
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "description": _description(route),
        "tags": [_tag(route)],
        # A key needs any one of these scopes.
        "security": [{"api_key": [scope.value]} for scope in sorted(route.scopes)],  # an empty list: no key is needed
        "parameters": [*_path_parameters(route), *_query_parameters(route, example), *_headers(route)],
        "responses": {
            **successes,
            **({"304": {"description": "Not modified: the `ETag` equals `If-None-Match`."}} if route.may_answer_304 else {}),
            **{str(status): _problem(status, refs) for status in _refusals(route)},
            **({"429": _problem(429, refs) | {"headers": _KEY_HEADERS}} if not route.is_open else {}),
        },
    }
    if route.deprecation is not None:
        operation["deprecated"] = True
    if content := {
        media: {"schema": refs[model, "validation"]} | _body_example(example, media) for media, model in _bodies(route).items()
    }:
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _body_example(example: Example, media: str) -> dict[str, Any]:
    body = example.bodies.get(media, example.body)
    return {} if body is None else {"example": body}


def _problem(status: int, refs: Any) -> dict[str, Any]:
    """Return the OpenAPI response for refusals with this status, with the example of the status's problem code.

    Status 400 has no example: it shares the code of 422, whose example has status 422. `refs` has pydantic's references to the
    schemas of types.
    """
    code, title = problems.TITLES[status]
    is_shown = problem_types.TYPES[code].example.problem.status == status
    shown = {"examples": {code: {"$ref": f"#/components/examples/{code}"}}} if is_shown else {}
    schema = {"schema": refs[problems.Problem, "serialization"]}
    return {"description": title, "content": {problems.CONTENT_TYPE: schema | shown}}


def _problem_examples(routes: Iterable[Route], public_url: str) -> dict[str, Any]:
    """Return code → the example of its problem document, for the codes with which these routes may refuse.

    The codes of `problems.OTHER_TITLES` are left out, because they share status 429 with `rate_limited`.
    """
    statuses = {status for route in routes for status in _refusals(route)}
    codes = dict.fromkeys(problems.TITLES[status][0] for status in sorted(statuses))
    found = {code: problem_types.TYPES[code].example.problem for code in codes}
    return {
        code: {"value": problem_types.document(shown, public_url, problem_types.REQUEST_ID)} for code, shown in found.items()
    }


def _tag(route: Route) -> str:
    """Return the tag of an operation: the first part of its path below /v1."""
    return route.path.split("/")[2]


def _description(route: Route) -> str:
    """Return the description of an operation: its scopes, the handling of a repeat, a cost above 1, and its deprecation.

    The description of an open route (Route.is_open) has only the deprecation, and says that the route needs no API key.
    """
    past = [f"{route.deprecation}."] if route.deprecation else []
    if route.is_open:
        return " ".join(["Needs no API key: the path has a token.", *past])
    scopes = ", ".join(f"`{scope}`" for scope in sorted(route.scopes))
    known = [f"Needs one of the scopes {scopes}." if len(route.scopes) > 1 else f"Needs the scope {scopes}."]
    known += ["A repeat with the same `Idempotency-Key` changes nothing."] if route.is_change else []
    known += ["Takes no `Idempotency-Key`: repeat events with the same ids."] if route.handler is None else []
    known += [f"Counts as {route.cost} requests towards the rate of the key."] if route.cost > 1 else []
    return " ".join(known + past)


def _bodies(route: Route) -> dict[str, type[pydantic.BaseModel]]:
    """Return the types of a route's body by content type; empty if the route takes no body."""
    return {"application/json": route.body} if route.body else dict(route.bodies)


def _refusals(route: Route) -> list[int]:
    """Return the statuses with which a route may refuse."""
    found = [400, 422, 429, 500, 503]
    found += [] if route.is_open else [401, 403]
    found += [404] if _PARAMETER.search(route.path) or route.handler is None else []  # publishing may be off
    found += [408] if route.handler is None else []
    found += [409] if route.is_change or route.is_validation or route.needs_permission else []
    found += [412] if route.may_answer_412 else []
    found += [413, 415] if _bodies(route) else []
    return sorted(found)


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    schema = {"type": "string", "pattern": ID_PATTERN}
    return [
        {"name": name, "in": "path", "required": True, "description": _PATH_PARAMETERS[name], "schema": schema}
        | {"example": PATH_PARAMETERS[name]}
        for name in _PARAMETER.findall(route.path)
    ]


def _query_parameters(route: Route, example: Example) -> list[dict[str, Any]]:
    schema = route.query.model_json_schema()
    return [
        {"name": name, "in": "query", "required": False, "description": part.pop("description")}
        | ({"deprecated": True} if part.pop("deprecated", False) else {})
        | ({"example": example.query[name]} if name in example.query else {})
        | {"schema": part}
        for name, part in schema.get("properties", {}).items()
    ]


def _headers(route: Route) -> list[dict[str, Any]]:
    printable = {"type": "string", "pattern": "^[!-~]{1,255}$"}
    taken = {
        "Idempotency-Key": printable if route.is_change else None,
        "If-None-Match": {"type": "string"} if route.may_answer_304 or route.may_answer_412 else None,
        "If-Match": {"type": "string"} if route.may_answer_412 else None,
        route.header: printable if route.header else None,
    }
    return [
        {"name": name, "in": "header", "required": False, "description": _HEADERS[name], "schema": schema}
        for name, schema in taken.items()
        if name and schema
    ]
