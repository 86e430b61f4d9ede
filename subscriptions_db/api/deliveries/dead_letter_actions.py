"""Redrive and discard dead letters, one or many.

Runs in the API. A redrive is asked for here, and carried out by `fanout archive`.
"""

from __future__ import annotations

import datetime as dt
from typing import Annotated

import pydantic
from pydantic import Field

from subscriptions_db.api.contract import audit, problems, routes
from subscriptions_db.api.contract.routes import Call, Route, Whose
from subscriptions_db.api.deliveries import dead_letters
from subscriptions_db.api.deliveries.dead_letters import AskedInTime, Cursor
from subscriptions_db.archive.search import archived_dead_letters, cursor
from subscriptions_db.archive.search.archived_dead_letters import State

MAX_MARKED = 1000
"""In one request, so that none keeps others from these rows for long."""
Limit = Annotated[int, Field(ge=1, le=MAX_MARKED)]


class Many(AskedInTime):
    """Which of the letters that wait. Either something is asked for, or all are: an empty body does nothing."""

    everything: bool = False
    cursor: Cursor | None = None
    """`next_cursor` of the request before."""
    limit: Limit = MAX_MARKED


class LetterState(pydantic.BaseModel):
    """What has become of a letter. Without its content, which must not be kept beside an `Idempotency-Key`."""

    id: str
    state: State
    state_since: dt.datetime


class Marked(pydantic.BaseModel):
    """How many letters it was, and how to go on."""

    count: int
    next_cursor: str
    has_more: bool
    """Whether there may be more: ask on with `next_cursor`."""


def redrive(call: Call) -> LetterState:
    """Ask for a letter to be delivered again."""
    return _mark(call, State.REDRIVING)


def discard(call: Call) -> LetterState:
    """Let a letter wait no longer."""
    return _mark(call, State.DISCARDED)


def redrive_many(call: Call) -> Marked:
    """Ask for letters to be delivered again."""
    return _mark_many(call, State.REDRIVING)


def discard_many(call: Call) -> Marked:
    """Let letters wait no longer."""
    return _mark_many(call, State.DISCARDED)


def _mark(call: Call, state: State) -> LetterState:
    before = dead_letters.found(call)
    mark = archived_dead_letters.redrive if state is State.REDRIVING else archived_dead_letters.discard
    marked = mark(call.connection, before.customer_id, [before.position], now=dt.datetime.now(dt.UTC))
    found = dead_letters.found(call)
    after = LetterState(id=str(found.position), state=found.state, state_since=found.state_since)
    if not marked:
        raise problems.Refused(
            409, f"the letter is {after.state}: this can be done to one that waits, or redriven if discarded"
        )
    told = {"before": {"state": before.state}, "after": {"state": after.state}}
    audit.write(call, _ACTIONS[state], "dead_letter", after.id, customer_id=before.customer_id, **told)
    return after


def _mark_many(call: Call, state: State) -> Marked:
    wanted, customer_id = call.body_as(Many), dead_letters.whose(call)
    asked = wanted.model_dump(mode="json", include=set(AskedInTime.model_fields), exclude_none=True)
    if wanted.everything == bool(asked):
        raise problems.invalid(("everything", "say which letters by another field, or that it is all of them; not both"))
    marked = archived_dead_letters.mark_all(
        call.connection,
        customer_id,
        dead_letters.selection(wanted),
        state,
        after=position_behind(wanted.cursor),
        limit=wanted.limit,
        now=dt.datetime.now(dt.UTC),
    )
    told = {"asked": asked, "count": marked.count, "until": str(marked.until)}
    audit.write(call, _ACTIONS[state], "dead_letters", customer_id, customer_id=customer_id, after=told)
    return shown(marked)


def position_behind(text: str | None) -> int:
    """Return where a cursor goes on; without one at the beginning."""
    return cursor.position_of(text) if text else 0


def shown(marked: archived_dead_letters.Marked) -> Marked:
    """Return what was marked as it is answered."""
    return Marked(count=marked.count, next_cursor=cursor.of_position(marked.until), has_more=marked.has_more)


_ACTIONS = {State.REDRIVING: "redrive", State.DISCARDED: "discard"}

ROUTES = (
    Route(
        method="POST", path="/v1/dead-letters/{letter_id}/redrive", name="redriveDeadLetter",
        summary="Have a dead letter delivered again.",
        scopes=routes.ADMINS, handler=redrive, query=Whose, answer=LetterState, is_change=True,
    ),
    Route(
        method="POST", path="/v1/dead-letters/{letter_id}/discard", name="discardDeadLetter",
        summary="Let a dead letter wait no longer.",
        scopes=routes.ADMINS, handler=discard, query=Whose, answer=LetterState, is_change=True,
    ),
    Route(
        method="POST", path="/v1/dead-letters/redrive", name="redriveDeadLetters",
        summary="Have dead letters that wait delivered again, by what is asked for.",
        scopes=routes.ADMINS, handler=redrive_many, query=Whose, body=Many, answer=Marked, is_change=True,
    ),
    Route(
        method="POST", path="/v1/dead-letters/discard", name="discardDeadLetters",
        summary="Let dead letters wait no longer, by what is asked for.",
        scopes=routes.ADMINS, handler=discard_many, query=Whose, body=Many, answer=Marked, is_change=True,
    ),
)  # fmt: skip
