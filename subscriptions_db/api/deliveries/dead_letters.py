"""Dead letters as customers see them: found by what is asked for, page by page, each with its payload byte for byte.

Runs in the API.
"""

from __future__ import annotations

import base64
import datetime as dt
from typing import Annotated, Any

import orjson
import pydantic
from pydantic import AwareDatetime, Field

from subscriptions_db import disclosure
from subscriptions_db.api.contract import crud, problems, routes
from subscriptions_db.api.contract.routes import Awaited, Call, Nothing, Page, Raw, Route, WaitS, Whose
from subscriptions_db.archive.search import archived_dead_letters, cursor
from subscriptions_db.archive.search.archived_dead_letters import Archived, State
from subscriptions_db.archive.search.selection import Selection
from subscriptions_db.manifest import manifest

MAX_LETTERS = 100
"""In one answer, with payloads of up to `source.max_event_bytes` each."""

Text = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[^\x00]*$")]
Reason = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[^\x00]*$")]
Cursor = Annotated[str, Field(max_length=cursor.MAX_CHARS)]


class Asked(Nothing):
    """Which letters. What is left out is not asked about."""

    endpoint: manifest.Id | None = None
    event_type: Text | None = None
    """An exact type, or a prefix wildcard such as `order.*`."""
    tenant: manifest.Id | None = None
    reason: Reason | None = None


class AskedInTime(Asked):
    """Which letters, and of when."""

    since: AwareDatetime | None = None
    """Given up at this time or later …"""
    until: AwareDatetime | None = None
    """… and before this one."""


class Which(Whose, AskedInTime, Page):
    """A part of the letters that wait."""

    limit: Annotated[int, Field(ge=1, le=MAX_LETTERS)] = 20
    wait_s: WaitS = 0
    """How long to wait for a letter when there is none; at most `api.max_poll_s`."""


class Letter(pydantic.BaseModel):
    """A delivery that was given up."""

    id: str
    state: State
    state_since: dt.datetime
    archived_at: dt.datetime
    payload_base64: str
    """The event's content, byte for byte as its producer wrote it."""
    record: dict[str, Any]
    """All else that the dead-letter topic has of it; docs/delivery-contract.md names the fields."""


class Letters(pydantic.BaseModel):
    """A page of letters, in the order of the archive."""

    items: list[Letter]
    next_cursor: str
    """Goes on behind this page, also to letters that are still to come. None is passed over."""
    has_more: bool
    """Whether to ask on at once: a page may be empty, and have more behind it."""


def whose(call: Call) -> str:
    """Return whose letters are asked for: those of who asks, or of whom the operator names."""
    return crud.owner_for(call, call.query_as(Whose).customer)


def selection(asked: Asked) -> Selection:
    """Return what is asked for as the archive has it."""
    fields = asked.model_dump(include=set(AskedInTime.model_fields))
    return Selection(endpoint_id=fields.pop("endpoint"), tenant_id=fields.pop("tenant"), **fields)


def position(call: Call) -> int:
    """Return the position that the path names; raise where there can be none."""
    text = call.path["letter_id"]
    if not text.isdecimal() or int(text) > cursor.MAX_POSITION:
        raise problems.not_found("letter")
    return int(text)


def found(call: Call) -> Archived:
    """Return the letter that the path names, whatever has become of it; raise that there is none."""
    letter = archived_dead_letters.get(call.connection, whose(call), position(call))
    if letter is None:
        raise problems.not_found("letter")
    return letter


def shown(letter: Archived) -> Letter:
    """Return a letter as it is shown."""
    return Letter(
        id=str(letter.position),
        state=letter.state,
        state_since=letter.state_since,
        archived_at=letter.archived_at,
        payload_base64=base64.b64encode(letter.payload).decode(),
        record=disclosure.letter(orjson.loads(letter.letter)),
    )


def list_(call: Call) -> Letters | Awaited:
    """Return a page of the letters that wait; when there is none, and none to look at, who asks may wait for one."""
    wanted = call.query_as(Which)
    after = cursor.position_of(wanted.cursor) if wanted.cursor else 0
    page = archived_dead_letters.browse(call.connection, whose(call), selection(wanted), after=after, limit=wanted.limit)
    following = cursor.of_position(page.until)
    answer = Letters(items=[shown(letter) for letter in page.letters], next_cursor=following, has_more=page.has_more)
    if page.letters or page.has_more or not wanted.wait_s:
        return answer
    return Awaited(answer, wanted.wait_s, following)


def get(call: Call) -> Letter:
    """Return a letter."""
    return shown(found(call))


def payload(call: Call) -> Raw:
    """Return the content of a letter's event."""
    return Raw(found(call).payload)


ROUTES = (
    Route(
        method="GET", path="/v1/dead-letters", name="listDeadLetters",
        summary="The dead letters that wait, in the order of the archive. Waits for one, if asked to.",
        scopes=routes.BROWSERS, handler=list_, query=Which, answer=Letters,
    ),
    Route(
        method="GET", path="/v1/dead-letters/{letter_id}", name="getDeadLetter",
        summary="A dead letter, whatever has become of it.",
        scopes=routes.BROWSERS, handler=get, query=Whose, answer=Letter,
    ),
    Route(
        method="GET", path="/v1/dead-letters/{letter_id}/payload", name="getDeadLetterPayload",
        summary="The content of its event, byte for byte.",
        scopes=routes.BROWSERS, handler=payload, query=Whose, answer=Raw,
    ),
)  # fmt: skip
