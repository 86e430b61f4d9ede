"""Request the redrive of dead letters, or discard dead letters: one by its id, or many by search criteria.

Runs in the API, which only changes the state of the dead letters in the archive. For a redrive, `fanout archive` then enqueues
the dead letters in the retry lane.
"""

from __future__ import annotations

import datetime as dt
from typing import Annotated

from pydantic import Field

from subscriptions_db import described
from subscriptions_db.api.contract import problems, request_audit, routes
from subscriptions_db.api.contract.routes import Call, CustomerQuery, Route
from subscriptions_db.api.deliveries import dead_letters
from subscriptions_db.api.deliveries.dead_letters import Cursor, DeadLetterTimeQuery
from subscriptions_db.archive.search import archive_positions, archived_dead_letters
from subscriptions_db.archive.search.archived_dead_letters import LetterState

MAX_MARKED = 1000
"""Maximum dead letters that one request may change, so that no request locks rows for long."""
Limit = Annotated[int, Field(ge=1, le=MAX_MARKED)]


class DeadLettersToMark(DeadLetterTimeQuery):
    """The waiting dead letters to redrive or to discard. Give search criteria, or `everything: true`.

    A request with both is refused, and so is a request with neither.
    """

    everything: bool = False
    """All waiting dead letters of the customer."""
    cursor: Cursor | None = None
    """`next_cursor` of the previous answer. Null: begin at the oldest dead letter."""
    limit: Limit = MAX_MARKED
    """Maximum dead letters of this request."""


class MarkedLetter(described.DescribedModel):
    """The new state of a dead letter, without the payload.

    The payload is left out, because the API stores the answer to a request with an `Idempotency-Key`.
    """

    id: str
    """The id of the dead letter."""
    state: LetterState
    """The new state."""
    state_since: dt.datetime
    """When the dead letter came into this state."""


class MarkedLetters(described.DescribedModel):
    """The number of dead letters that the request redrives or discards, and where to continue."""

    count: int
    """Number of dead letters that this request redrives or discards."""
    next_cursor: str
    """Cursor after these dead letters."""
    has_more: bool
    """True: there may be more. Repeat the request with `next_cursor`."""


def redrive(call: Call) -> MarkedLetter:
    """Request the redrive of a waiting or discarded dead letter.

    Raise Refused with 409 for a dead letter in another state, and with 404 or 422 as `dead_letters.existing_letter` does.
    """
    return _mark(call, LetterState.REDRIVING)


def discard(call: Call) -> MarkedLetter:
    """Discard a waiting dead letter. Raise Refused as `redrive` does."""
    return _mark(call, LetterState.DISCARDED)


def redrive_many(call: Call) -> MarkedLetters:
    """Request the redrive of the first matching waiting dead letters after `cursor`, at most `limit`.

    Raise Refused with 422 if the request has neither criteria nor `everything`, or both, and as `dead_letters.customer_of`
    does. Raise RegistrationError for an invalid cursor.
    """
    return _mark_many(call, LetterState.REDRIVING)


def discard_many(call: Call) -> MarkedLetters:
    """Discard the first matching waiting dead letters after `cursor`, at most `limit`. Raise errors as `redrive_many` does."""
    return _mark_many(call, LetterState.DISCARDED)


def _mark(call: Call, state: LetterState) -> MarkedLetter:
    before = dead_letters.existing_letter(call)
    mark = archived_dead_letters.redrive if state is LetterState.REDRIVING else archived_dead_letters.discard
    marked = mark(call.connection, before.customer_id, [before.position], now=dt.datetime.now(dt.UTC))
    found = dead_letters.existing_letter(call)
    after = MarkedLetter(id=str(found.position), state=found.state, state_since=found.state_since)
    if not marked:
        raise problems.Refused(
            409,
            f"the dead letter is {after.state}, so nothing was changed: only a waiting dead letter can be discarded, and only "
            "a waiting or discarded one can be redriven",
        )
    fields = {"before": {"state": before.state}, "after": {"state": after.state}}
    request_audit.write(call, _ACTIONS[state], "dead_letter", after.id, customer_id=before.customer_id, **fields)
    return after


def _mark_many(call: Call, state: LetterState) -> MarkedLetters:
    wanted, customer_id = call.body_as(DeadLettersToMark), dead_letters.customer_of(call)
    asked = wanted.model_dump(mode="json", include=set(DeadLetterTimeQuery.model_fields), exclude_none=True)
    if wanted.everything and asked:
        why = f"is true beside {', '.join(asked)}, so nothing was changed: leave out these fields, or everything"
        raise problems.invalid(("everything", why))
    if not wanted.everything and not asked:
        why = "is not true, and no field selects dead letters, so nothing was changed: name a field, or set it to true"
        raise problems.invalid(("everything", why))
    marked = archived_dead_letters.mark_all(
        call.connection,
        customer_id,
        dead_letters.selection(wanted),
        state,
        after=position_behind(wanted.cursor),
        limit=wanted.limit,
        now=dt.datetime.now(dt.UTC),
    )
    fields = {"asked": asked, "count": marked.count, "until": str(marked.until)}
    request_audit.write(call, _ACTIONS[state], "dead_letters", customer_id, customer_id=customer_id, after=fields)
    return shown(marked)


def position_behind(text: str | None) -> int:
    """Return the position in the cursor `text`, after which a request continues. Without a cursor: 0, the beginning.

    Raise RegistrationError for an invalid cursor.
    """
    return archive_positions.letter_position(text) if text else 0


def shown(marked: archived_dead_letters.MarkResult) -> MarkedLetters:
    """Convert the result of a redrive or discard of many dead letters to the API's type."""
    return MarkedLetters(
        count=marked.count, next_cursor=archive_positions.letter_cursor(marked.until), has_more=marked.has_more
    )


_ACTIONS = {LetterState.REDRIVING: "redrive", LetterState.DISCARDED: "discard"}

ROUTES = (
    Route(
        method="POST", path="/v1/dead-letters/{letter_id}/redrive", name="redriveDeadLetter",
        summary="Redrive a dead letter.",
        scopes=routes.WRITERS, handler=redrive, query=CustomerQuery, answer=MarkedLetter, is_change=True,
    ),
    Route(
        method="POST", path="/v1/dead-letters/{letter_id}/discard", name="discardDeadLetter",
        summary="Discard a dead letter.",
        scopes=routes.WRITERS, handler=discard, query=CustomerQuery, answer=MarkedLetter, is_change=True,
    ),
    Route(
        method="POST", path="/v1/dead-letters/redrive", name="redriveDeadLetters",
        summary="Redrive the waiting dead letters that match.",
        scopes=routes.WRITERS, handler=redrive_many, query=CustomerQuery, body=DeadLettersToMark, answer=MarkedLetters,
        is_change=True, is_answer_progress=True,
    ),
    Route(
        method="POST", path="/v1/dead-letters/discard", name="discardDeadLetters",
        summary="Discard the waiting dead letters that match.",
        scopes=routes.WRITERS, handler=discard_many, query=CustomerQuery, body=DeadLettersToMark, answer=MarkedLetters,
        is_change=True, is_answer_progress=True,
    ),
)  # fmt: skip
