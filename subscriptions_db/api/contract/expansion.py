"""Add the whole endpoint to each item of an answer that has the endpoint's id, if the request has `expand=endpoint`.

Runs in the API. The endpoints are read with the rights of the API key: a key that is limited to endpoints gets no others, and a
request with a key whose scope reads no endpoints is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeVar

from pydantic import Field

from subscriptions_db import described
from subscriptions_db.api.contract import crud, problems, routes, schemas
from subscriptions_db.api.contract.routes import Call, Model, NoParameters
from subscriptions_db.registration import registered_rows

Row = TypeVar("Row")


class ExpandQuery(NoParameters):
    """Query parameters with `expand`, which adds to each item of the answer the resource that an id in the item names."""

    expand: Literal["endpoint"] | None = None
    """`endpoint`: each item also has its endpoint, in `expanded`. A key of scope `poller` gets 403."""


class Expanded(described.DescribedModel):
    """The whole resources that an item names by their ids, added for `expand`."""

    endpoint: schemas.Endpoint | None
    """Null: the endpoint was deleted."""


class Expandable(described.DescribedModel):
    """An item with the id of an endpoint."""

    expanded: Expanded | None = Field(None, exclude_if=lambda expanded: expanded is None)
    """The endpoint. Only in answers to requests with `expand`."""


def fitting_part(found: Sequence[Row], show: Callable[[Sequence[Row]], list[Model]], expand: str | None) -> list[Model]:
    """Return the leading items of a page that fit into one answer, converted by `show`.

    A page with rows has at least one item. With `expand`, `show` also reads the endpoints of its rows. Then each call of
    `show` gets only `crud.ROWS_PER_READ` rows, because one endpoint has up to 200 kB.
    """
    items: list[Model] = []
    step = crud.ROWS_PER_READ if expand else routes.MAX_PAGE
    for first in range(0, len(found), step):
        items += show(found[first : first + step])
        fitting = routes.fitting_part(items)
        if len(fitting) < len(items):
            return fitting
    return items


def require_endpoint_reader(call: Call, parameter: str) -> None:
    """Raise Refused with 403 if the scope of the key reads no endpoints. `parameter` is the parameter that would show them."""
    if call.principal.scope not in routes.REGISTRY_READERS:
        raise problems.Refused(
            403, f"scope {call.principal.scope} reads no endpoints: leave {parameter} out, or use a key of another scope"
        )


class EndpointReader:
    """Read the endpoints whose ids the items of one answer have.

    Each endpoint is read once for the answer. Each call of `expanded` makes at most one query.
    """

    def __init__(self, call: Call, expand: str | None) -> None:
        """Raise Refused with 403 if the request has `expand`, and the scope of its key reads no endpoints."""
        if expand is not None:
            require_endpoint_reader(call, "expand")
        self._call = call
        self._is_asked = expand == "endpoint"
        self._known: dict[str, schemas.Endpoint | None] = {}

    def expanded(self, endpoint_ids: Iterable[str]) -> dict[str, Expanded]:
        """Return endpoint id → `Expanded`, also for deleted endpoints; an empty dictionary if the request has no `expand`."""
        wanted = set(endpoint_ids) if self._is_asked else set()
        if missing := sorted(wanted - self._known.keys()):
            rows = registered_rows.rows_of(self._call.connection, {"endpoint": missing})["endpoint"]
            self._known |= {name: schemas.endpoint(name, rows[name]) if name in rows else None for name in missing}
        return {endpoint_id: Expanded(endpoint=self._known[endpoint_id]) for endpoint_id in wanted}
