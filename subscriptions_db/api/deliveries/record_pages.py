"""Define the search criteria that attempts and deliveries share, and compute the cursors and the totals of their pages.

Each page has its newest attempts or deliveries first. A client can page to older ones, and back to newer ones. Runs in the API.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypedDict

from pydantic import AwareDatetime

from subscriptions_db.api.contract import cursors
from subscriptions_db.api.contract.routes import CustomerQuery, ListQuery
from subscriptions_db.api.deliveries.dead_letters import Text
from subscriptions_db.archive.search import archive_positions, records
from subscriptions_db.manifest import manifest


class RecordQuery(CustomerQuery, ListQuery):
    """Search criteria for attempts or deliveries of one customer. An omitted criterion matches everything."""

    endpoint: manifest.Id | None = None
    """Only attempts or deliveries of this endpoint."""
    url: Text | None = None
    """Only attempts or deliveries of endpoints with this text in their present URL, in upper or lower case."""
    event_type: Text | None = None
    """An exact type, or a prefix wildcard such as `order.*`. A batch has no type."""
    tenant: manifest.Id | None = None
    """Only attempts or deliveries of events of this tenant. A batch has no tenant."""
    webhook_id: Text | None = None
    """Only attempts or deliveries with this `webhook-id`."""
    since: AwareDatetime | None = None
    """Only attempts or deliveries that started at this time or later."""
    until: AwareDatetime | None = None
    """Only attempts or deliveries that started before this time."""

    def start(self) -> archive_positions.PageStart:
        """Return the place at which the page begins, and its direction; raise RegistrationError for an invalid cursor."""
        return archive_positions.PageStart.read(self.cursor) if self.cursor else records.NEWEST


class PageFields(TypedDict):
    """The fields of a BoundedListPage, without its items."""

    next_cursor: str | None
    previous_cursor: str | None
    total: int | None
    is_total_exact: bool | None


def fields(
    wanted: RecordQuery,
    places: Sequence[archive_positions.RecordPosition],
    further: archive_positions.RecordPosition | None,
    count: Callable[[], records.Total],
) -> PageFields:
    """Return the cursors of a page and its total.

    `places` has the positions of the page's rows. First comes the row nearest to the request's cursor, or without a cursor the
    newest row. `further` is the position at which a search for older rows continues, or with a `previous_cursor` a search for
    newer rows. None: no rows are left in this direction. `count` returns the total, and is called only if the request asks for
    the total.
    """
    start, total = wanted.start(), count() if wanted.total else None
    nearest = places[0] if places else start.place.beside(is_newer=start.is_backwards)
    older, newer = cursors.neighbours(
        nearest=nearest,
        further=further,
        is_first=start == records.NEWEST,
        is_backwards=start.is_backwards,
        next_of=lambda place: archive_positions.PageStart(place).text(),
        previous_of=lambda place: archive_positions.PageStart(place, is_backwards=True).text(),
    )
    return PageFields(
        next_cursor=older,
        previous_cursor=newer,
        total=None if total is None else total.matches,
        is_total_exact=None if total is None else total.is_exact,
    )
