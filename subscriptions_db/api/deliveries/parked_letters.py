"""List the parked dead letters of a consumer, and give them back to the consumer (unpark).

Runs in the API.
"""

from __future__ import annotations

import datetime as dt
from typing import Annotated

from pydantic import Field

from subscriptions_db import described
from subscriptions_db.api.contract import problems, request_audit, routes
from subscriptions_db.api.contract.routes import Call, CustomerQuery, ListQuery, NoParameters, Route
from subscriptions_db.api.deliveries import consumers as consumer_routes
from subscriptions_db.api.deliveries import dead_letters
from subscriptions_db.api.deliveries.dead_letters import MAX_LETTERS, DeadLetter, DeadLetterTextQuery, customer_of
from subscriptions_db.archive.search import archive_positions, consumers, counts, parked_letters
from subscriptions_db.manifest import mistakes

LetterId = Annotated[str, Field(pattern=mistakes.LETTER_ID_PATTERN)]


class ParkedPageQuery(CustomerQuery, DeadLetterTextQuery, ListQuery):
    """Search criteria for a page of the parked dead letters."""

    limit: Annotated[int, Field(ge=1, le=MAX_LETTERS)] = 20
    """Maximum dead letters of the page. A page also ends when it has 1 MiB."""


class ParkedDeadLetter(DeadLetter):
    """A dead letter that a consumer does not get again, because it was leased `max_receives` times without an ack."""

    times: int
    """Number of leases of the dead letter by this consumer until it was parked. The count begins again at 0 after an unpark or
    a seek."""
    parked_at: dt.datetime
    """When the dead letter was parked."""


class ParkedDeadLetters(dead_letters.DeadLetterPage):
    """A page of parked dead letters, in the order of the archive."""

    items: list[ParkedDeadLetter]
    """The dead letters of the page."""
    next_cursor: str
    """Cursor after this page. A dead letter that is parked later may lie before this cursor. Then no later page has it."""


class UnparkRequest(NoParameters):
    """The parked dead letters to give back to the consumer. Give either `letters` or `everything: true`."""

    letters: Annotated[list[LetterId], Field(max_length=parked_letters.MAX_UNPARKED)] | None = None
    """The ids of the dead letters."""
    everything: bool = False
    """All parked dead letters of the consumer."""


class UnparkedDeadLetters(described.DescribedModel):
    """The ids of the dead letters that the request has unparked.

    An id of the request is missing if its dead letter was not parked, or is still parked (then `has_more` is true).
    """

    letters: list[str]
    """The ids of the dead letters."""
    has_more: bool
    """True: more dead letters of the request are still parked. Repeat the request."""


def list_(call: Call) -> ParkedDeadLetters:
    """Return a page of the parked dead letters of a consumer.

    Raise Refused with 404 if there is no such consumer. Raise it with 403 if the request has `url`, and the scope of its key
    reads no endpoints.
    """
    wanted, customer_id, name = call.query_as(ParkedPageQuery), customer_of(call), consumer_routes.existing_consumer(call).name
    asked, (place, is_backwards) = dead_letters.text_selection(call, wanted), archive_positions.letter_start(wanted.cursor)
    page = parked_letters.browse(
        call.connection, customer_id, name, asked, place=place, is_backwards=is_backwards, limit=wanted.limit
    )
    items = [
        ParkedDeadLetter(times=parked.times, parked_at=parked.parked_at, **dict(dead_letters.shown(parked.letter)))
        for parked in page.parked
    ]
    total = counts.of_parked(call.connection, customer_id, name, asked) if wanted.total else None
    fields = dead_letters.page_fields(wanted.cursor, page.until, has_further=page.has_more, total=total)
    return ParkedDeadLetters(items=items, **fields)


def unpark(call: Call) -> UnparkedDeadLetters:
    """Give parked dead letters back to their consumer, whose pollers can lease them again at once.

    Raise Refused:

    * 404: there is no such consumer.
    * 409: nothing was unparked, because the consumer has leased the maximum of dead letters without an ack. Parked ones do
      not count.
    * 422: the request does not name the dead letters in exactly one way.
    * 422: a request with an operator's key names no `customer`, or one with a customer's key names another customer.
    """
    wanted, customer_id, name = call.body_as(UnparkRequest), customer_of(call), consumer_routes.existing_consumer(call).name
    if wanted.letters is None and not wanted.everything:
        raise problems.invalid(("letters", "is missing: name dead letters, or set everything to true"))
    if wanted.letters is not None and wanted.everything:
        raise problems.invalid(("letters", "is given beside everything: true, so nothing was unparked: leave one of them out"))
    positions = (
        None if wanted.letters is None else [min(int(letter), archive_positions.MAX_POSITION) for letter in wanted.letters]
    )
    unparked = parked_letters.unpark(call.connection, customer_id, name, positions, now=dt.datetime.now(dt.UTC))
    if unparked.has_more and not unparked.positions:
        raise problems.Refused(
            409,
            f"the consumer has {consumers.MAX_UNACKNOWLEDGED} dead letters without an ack, the maximum, so nothing was "
            "unparked: ack some first",
        )
    asked = {"everything": wanted.everything, "count": len(unparked.positions)}
    request_audit.write(call, "unpark", "consumer", name, customer_id=customer_id, after=asked)
    return UnparkedDeadLetters(letters=[str(position) for position in unparked.positions], has_more=unparked.has_more)


ROUTES = (
    Route(
        method="GET", path="/v1/dead-letter-consumers/{consumer_id}/parked", name="listParkedDeadLetters",
        summary="List the dead letters that a consumer does not get again, in the order of the archive.",
        scopes=routes.BROWSERS, handler=list_, query=ParkedPageQuery, answer=ParkedDeadLetters,
    ),
    Route(
        method="POST", path="/v1/dead-letter-consumers/{consumer_id}/unpark", name="unparkDeadLetters",
        summary="Give parked dead letters back to their consumer. Their leases count from zero again.",
        scopes=routes.WRITERS, handler=unpark, query=CustomerQuery, body=UnparkRequest, answer=UnparkedDeadLetters,
        is_change=True, is_answer_progress=True,
    ),
)  # fmt: skip
