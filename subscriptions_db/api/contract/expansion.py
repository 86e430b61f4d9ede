"""Expand the endpoint of each item of an answer, if the request asks for it with `expand=endpoint`.

Runs in the API. The endpoints are read with the rights of the API key, so a limited key sees no other endpoint here either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeVar

from pydantic import Field

from subscriptions_db import described
from subscriptions_db.api.contract import crud, routes, schemas
from subscriptions_db.api.contract.routes import Call, Model, NoParameters
from subscriptions_db.registration import registered_rows

Row = TypeVar("Row")


class ExpandQuery(NoParameters):
    """The ids in an answer that the answer also shows as whole resources."""

    expand: Literal["endpoint"] | None = None
    """`endpoint`: each item also has its endpoint, in `expanded`."""


class Expanded(described.DescribedModel):
    """The resources that the ids of an item name."""

    endpoint: schemas.Endpoint | None
    """Null: the endpoint was deleted."""


class Expandable(described.DescribedModel):
    """An item that names an endpoint."""

    expanded: Expanded | None = Field(None, exclude_if=lambda expanded: expanded is None)
    """Only with `expand`."""


def fitting_part(found: Sequence[Row], show: Callable[[Sequence[Row]], list[Model]], expand: str | None) -> list[Model]:
    """Return the leading items of a page that fit into one answer, converted by `show`.

    With expansions, `show` reads the endpoints of `ROWS_PER_READ` items at a time, because one endpoint has up to 200 kB.
    """
    items: list[Model] = []
    step = crud.ROWS_PER_READ if expand else routes.MAX_PAGE
    for first in range(0, len(found), step):
        items += show(found[first : first + step])
        fitting = routes.fitting_part(items)
        if len(fitting) < len(items):
            return fitting
    return items


class EndpointReader:
    """Read the endpoints that the items of one answer name.

    Each endpoint is read once, and each call makes at most one query.
    """

    def __init__(self, call: Call, expand: str | None) -> None:
        self._call = call
        self._is_asked = expand == "endpoint"
        self._known: dict[str, schemas.Endpoint | None] = {}

    def expanded(self, endpoint_ids: Iterable[str]) -> dict[str, Expanded]:
        """Return endpoint id → its expansion; an empty dictionary if the request has no `expand`."""
        wanted = set(endpoint_ids) if self._is_asked else set()
        if missing := sorted(wanted - self._known.keys()):
            rows = registered_rows.rows_of(self._call.connection, {"endpoint": missing})["endpoint"]
            self._known |= {name: schemas.endpoint(name, rows[name]) if name in rows else None for name in missing}
        return {endpoint_id: Expanded(endpoint=self._known[endpoint_id]) for endpoint_id in wanted}
