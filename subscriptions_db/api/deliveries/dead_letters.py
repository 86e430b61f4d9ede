"""Search and count dead letters, and return a dead letter with its payload byte for byte.

Runs in the API.
"""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Sequence
from typing import Annotated, Any, TypedDict

import orjson
from pydantic import AwareDatetime, Field

from subscriptions_db import described, disclosure
from subscriptions_db.api.contract import crud, expansion, problems, routes
from subscriptions_db.api.contract.routes import Call, CustomerQuery, ListQuery, LongPoll, NoParameters, RawBytes, Route, WaitS
from subscriptions_db.archive.search import archive_positions, archived_dead_letters, counts
from subscriptions_db.archive.search.archived_dead_letters import ArchivedDeadLetter, LetterState
from subscriptions_db.archive.search.selection import DeadLetterSearch
from subscriptions_db.manifest import manifest, mistakes

MAX_LETTERS = 100
"""Maximum dead letters in one answer. Each payload has up to `source.max_event_bytes`."""

Text = Annotated[str, Field(min_length=1, max_length=255, pattern=mistakes.NO_NULL_PATTERN)]
Reason = Annotated[str, Field(min_length=1, max_length=64, pattern=mistakes.NO_NULL_PATTERN)]
Cursor = Annotated[str, Field(max_length=archive_positions.MAX_CHARS)]


class DeadLetterQuery(NoParameters):
    """Search criteria for dead letters. An omitted field matches everything."""

    endpoint: manifest.Id | None = None
    """Only dead letters of this endpoint."""
    event_type: Text | None = None
    """An exact type, or a prefix wildcard such as `order.*`."""
    tenant: manifest.Id | None = None
    """Only dead letters of events of this tenant."""
    reason: Reason | None = None
    """Only dead letters with this reason."""


class DeadLetterTimeQuery(DeadLetterQuery):
    """Search criteria for dead letters, with a time range."""

    since: AwareDatetime | None = None
    """Only deliveries that were dead-lettered at this time or later."""
    until: AwareDatetime | None = None
    """Only deliveries that were dead-lettered before this time."""


class DeadLetterTextQuery(DeadLetterTimeQuery):
    """Search criteria for dead letters, with a time range and texts."""

    url: Text | None = None
    """Only dead letters of endpoints with this text in their present URL, in upper or lower case. A key of scope `poller` gets
    403."""
    q: Text | None = None
    """Only dead letters with this text in the id of the event, the `webhook-id` or the event type, in upper or lower case."""


class DeadLetterPageQuery(CustomerQuery, DeadLetterTextQuery, ListQuery, expansion.ExpandQuery):
    """Search criteria for a page of the waiting dead letters."""

    limit: Annotated[int, Field(ge=1, le=MAX_LETTERS)] = 20
    """Maximum dead letters of the page. A page also ends when it has 1 MiB."""
    wait_s: WaitS = 0
    """Seconds to wait if no dead letter matches; at most `api.max_poll_s`."""


class DeadLetterCountQuery(CustomerQuery, DeadLetterTextQuery):
    """Search criteria for the waiting dead letters to count."""


class DeadLetterCount(described.DescribedModel):
    """The number of waiting dead letters that match."""

    count: int
    """The number of dead letters."""
    is_exact: bool
    """False: `count` is a lower bound, because only the oldest waiting dead letters are examined: 100,000, or 5,000 with
    `q`."""


class DeadLetter(expansion.Expandable):
    """A delivery that the platform gave up."""

    id: str
    """The id: the position in the archive."""
    state: LetterState
    """The state. `GET /v1/dead-letters` lists and counts waiting dead letters only."""
    state_since: dt.datetime
    """When the dead letter came into this state."""
    archived_at: dt.datetime
    """When the archive took the dead letter."""
    payload_base64: str
    """The payload, byte for byte as its producer wrote it. A value of a schema registry is JSON here."""
    record: dict[str, Any]
    """The record of the dead-letter topic without the payload. docs/delivery-contract.md lists the fields."""


class DeadLetterPage(described.DescribedModel):
    """The fields of a page of dead letters, without its items. The items are in the order in which they were archived."""

    next_cursor: str
    """Cursor after this page. With this cursor, later requests also get dead letters that are archived after this answer."""
    has_more: bool
    """True: request the next page at once. An empty page can have a next one."""
    previous_cursor: str | None
    """Cursor of the page before. Null: there is none."""
    total: int | None
    """The number of matching dead letters. Null without `total=true`."""
    is_total_exact: bool | None
    """Null without `total=true`. False: there may be more than `total`, because only the oldest dead letters are examined."""


class DeadLetters(DeadLetterPage):
    """A page of dead letters, in the order of the archive."""

    items: list[DeadLetter]
    """The dead letters of the page."""


class LetterPageFields(TypedDict):
    """The fields of a DeadLetterPage."""

    next_cursor: str
    has_more: bool
    previous_cursor: str | None
    total: int | None
    is_total_exact: bool | None


def customer_of(call: Call) -> str:
    """Return the customer of the request: the customer of its API key, or, with an operator's key, the parameter `customer`.

    Raise Refused with 422 if a request with an operator's key names no customer, or one with a customer's key names another
    customer.
    """
    return crud.owner_for(call, call.query_as(CustomerQuery).customer)


def selection(asked: DeadLetterQuery) -> DeadLetterSearch:
    """Convert the search criteria of a request to search criteria of the archive.

    The function reads only fields that `asked` inherits from the query models for dead letters. A subclass may have a field
    with the name of a criterion and another meaning, which is ignored. An example is `since` of NewConsumer: the consumer's
    start.
    """
    criteria = next(model for model in (DeadLetterTextQuery, DeadLetterTimeQuery, DeadLetterQuery) if isinstance(asked, model))
    fields = asked.model_dump(include=set(criteria.model_fields))
    renamed = {"endpoint_id": fields.pop("endpoint"), "tenant_id": fields.pop("tenant"), "text": fields.pop("q", None)}
    return DeadLetterSearch(**renamed, **fields)


def text_selection(call: Call, asked: DeadLetterTextQuery) -> DeadLetterSearch:
    """Convert the search criteria of a request to search criteria of the archive.

    Raise Refused with 403 if the request has `url`, and the scope of its key reads no endpoints. By many searches, such a key
    could guess a URL that it may not read.
    """
    if asked.url is not None:
        expansion.require_endpoint_reader(call, "url")
    return selection(asked)


def position(call: Call) -> int:
    """Return the id of a dead letter in the request's path, as a position. Raise Refused with 404 if the id is no position."""
    text = call.path["letter_id"]
    if not text.isdecimal() or int(text) > archive_positions.MAX_POSITION:
        raise problems.not_found("dead letter")
    return int(text)


def existing_letter(call: Call) -> ArchivedDeadLetter:
    """Return the dead letter that the request's path names, in any state.

    Raise Refused with 404 if it does not exist. Raise Refused with 422 if a request with an operator's key names no `customer`,
    or one with a customer's key names another customer.
    """
    letter = archived_dead_letters.get(call.connection, customer_of(call), position(call))
    if letter is None:
        raise problems.not_found("dead letter")
    return letter


def shown(letter: ArchivedDeadLetter, expanded: expansion.Expanded | None = None) -> DeadLetter:
    """Convert an archived dead letter to the API's type."""
    return DeadLetter(
        id=str(letter.position),
        state=letter.state,
        state_since=letter.state_since,
        archived_at=letter.archived_at,
        payload_base64=base64.b64encode(letter.payload_bytes()).decode(),
        record=disclosure.letter(orjson.loads(letter.letter)),
        expanded=expanded,
    )


def list_(call: Call) -> DeadLetters | LongPoll:
    """Return a page of the waiting dead letters that match the request.

    Return a long poll instead if the request has `wait_s`, the page is empty, and its `has_more` is False. Raise Refused with
    403 if the request has `expand` or `url`, and the scope of its key reads no endpoints. Raise it with 422 as
    `existing_letter` does. Raise RegistrationError for an invalid cursor.
    """
    wanted, customer_id = call.query_as(DeadLetterPageQuery), customer_of(call)
    asked, (place, is_backwards) = text_selection(call, wanted), archive_positions.letter_start(wanted.cursor)
    if is_backwards:
        page = archived_dead_letters.browse_back(call.connection, customer_id, asked, before=place, limit=wanted.limit)
    else:
        page = archived_dead_letters.browse(call.connection, customer_id, asked, after=place, limit=wanted.limit)
    items, until, has_further = _fitting(call, page, wanted.expand, is_backwards=is_backwards)
    total = counts.of_dead_letters(call.connection, customer_id, asked) if wanted.total else None
    answer = DeadLetters(items=items, **page_fields(wanted.cursor, until, has_further=has_further, total=total))
    if items or answer.has_more or not wanted.wait_s:
        return answer
    return LongPoll(answer, wanted.wait_s, answer.next_cursor)


def page_fields(asked_cursor: str | None, until: int, *, has_further: bool, total: counts.Count | None) -> LetterPageFields:
    """Return the cursors, `has_more` and the total of a page.

    The page has all matches between the request's cursor and the position `until`.

    * `asked_cursor` is the request's cursor. None: the page is the first.
    * `until` is a position after the cursor, or before it if the cursor is a `previous_cursor`.
    * `has_further`: there may be more matches beyond `until`.
    * `total` None: the request does not ask for the total.

    `has_more` in the result says whether there may be matches later than the page. With a `previous_cursor` it is True, because
    the client comes from a later page.
    """
    place, is_backwards = archive_positions.letter_start(asked_cursor)
    if is_backwards:
        following, has_more, earlier = archive_positions.letter_cursor(place - 1), True, until if has_further else None
    else:
        following, has_more, earlier = archive_positions.letter_cursor(until), has_further, place + 1 if place else None
    return LetterPageFields(
        next_cursor=following,
        has_more=has_more,
        previous_cursor=None if earlier is None else archive_positions.letter_cursor_back(earlier),
        total=None if total is None else total.letters,
        is_total_exact=None if total is None else total.is_exact,
    )


def _fitting(
    call: Call, page: archived_dead_letters.LetterPage, expand: str | None, *, is_backwards: bool
) -> tuple[list[DeadLetter], int, bool]:
    """Return the dead letters of a page that fit into one answer, in order, with `until` and `has_further` of `page_fields`.

    Expanded endpoints may make the page too large. Then only the dead letters nearest to the request's cursor are returned.
    """
    nearest = page.letters[::-1] if is_backwards else page.letters
    endpoints = expansion.EndpointReader(call, expand)
    items = expansion.fitting_part(nearest, lambda part: _expanded(part, endpoints), expand)
    until, has_more = page.until, page.has_more
    if len(items) < len(nearest):
        until, has_more = nearest[len(items) - 1].position, True
    return items[::-1] if is_backwards else items, until, has_more


def _expanded(letters: Sequence[ArchivedDeadLetter], endpoints: expansion.EndpointReader) -> list[DeadLetter]:
    named = [(letter, str(orjson.loads(letter.letter)["endpoint_id"])) for letter in letters]
    expanded = endpoints.expanded(endpoint_id for _, endpoint_id in named)
    return [shown(letter, expanded.get(endpoint_id)) for letter, endpoint_id in named]


def count(call: Call) -> DeadLetterCount:
    """Return the number of waiting dead letters that match.

    Raise Refused with 403 if the request has `url`, and the scope of its key reads no endpoints. Raise it with 422 as
    `customer_of` does.
    """
    wanted = text_selection(call, call.query_as(DeadLetterCountQuery))
    found = counts.of_dead_letters(call.connection, customer_of(call), wanted)
    return DeadLetterCount(count=found.letters, is_exact=found.is_exact)


def get(call: Call) -> DeadLetter:
    """Return a dead letter in any state. Raise Refused as `existing_letter` does."""
    return shown(existing_letter(call))


def payload(call: Call) -> RawBytes:
    """Return the payload of a dead letter's event, byte for byte. Raise Refused as `existing_letter` does."""
    return RawBytes(existing_letter(call).payload_bytes())


ROUTES = (
    Route(
        method="GET", path="/v1/dead-letters", name="listDeadLetters",
        summary="List the waiting dead letters, in the order of the archive. With `wait_s`, wait for one.",
        scopes=routes.BROWSERS, handler=list_, query=DeadLetterPageQuery, answer=DeadLetters,
    ),
    Route(
        method="GET", path="/v1/dead-letters/count", name="countDeadLetters",
        summary="Count the waiting dead letters, exactly as long as a customer has fewer than 100,000, or 5,000 with `q`.",
        scopes=routes.BROWSERS, handler=count, query=DeadLetterCountQuery, answer=DeadLetterCount,
    ),
    Route(
        method="GET", path="/v1/dead-letters/{letter_id}", name="getDeadLetter",
        summary="Get a dead letter, in any state.",
        scopes=routes.BROWSERS, handler=get, query=CustomerQuery, answer=DeadLetter,
    ),
    Route(
        method="GET", path="/v1/dead-letters/{letter_id}/payload", name="getDeadLetterPayload",
        summary="Get the payload of a dead letter's event, byte for byte.",
        scopes=routes.BROWSERS, handler=payload, query=CustomerQuery, answer=RawBytes,
    ),
)  # fmt: skip
