"""Compare answers of the HTTP API with the schemas of its OpenAPI document."""

from __future__ import annotations

import re
from typing import Any

import jsonschema

from subscriptions_db.api.contract.routes import Route


def path_parameters(route: Route) -> list[str]:
    """Return the names of the parameters in a route's path."""
    return re.findall(r"\{(\w+)\}", route.path)


def answer_schema(document: dict[str, Any], route: Route, status: int) -> dict[str, Any]:
    """Return the schema of the JSON answer with this status."""
    answers = document["paths"][route.path][route.method.lower()]["responses"]
    return answers[str(status)]["content"]["application/json"]["schema"]


def require_fit(document: dict[str, Any], schema: dict[str, Any], value: Any) -> None:
    """Raise jsonschema.ValidationError if a value violates a schema of the document, or has a field that the schema lacks."""
    components = {"schemas": {name: _closed(known) for name, known in document["components"]["schemas"].items()}}
    jsonschema.Draft202012Validator(schema | {"components": components}).validate(value)


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema without additional properties, unless the schema itself says otherwise."""
    return {"additionalProperties": False} | schema if "properties" in schema else schema
