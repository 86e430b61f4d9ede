"""What pollers do: lease letters, acknowledge them, give them back.

Runs in the API.
"""

from __future__ import annotations

import datetime as dt
from typing import Annotated

import pydantic
from pydantic import Field

from delivery import errors
from subscriptions_db.api.contract import problems, routes
from subscriptions_db.api.contract.routes import Awaited, Call, Nothing, Route, WaitS, Whose
from subscriptions_db.api.deliveries import consumers as consumer_routes
from subscriptions_db.api.deliveries import dead_letters
from subscriptions_db.api.deliveries.dead_letters import MAX_LETTERS, Letter, whose
from subscriptions_db.archive.search import consumers, cursor

Seconds = Annotated[float, Field(ge=0, le=consumers.MAX_LEASE_S)]


class Lease(Nothing):
    """What a poller asks for."""

    limit: Annotated[int, Field(ge=1, le=MAX_LETTERS)] = 20
    lease_s: Seconds = 60
    """For how long nobody else is given them."""
    wait_s: WaitS = 0
    """How long to wait for a letter when there is none; at most `api.max_poll_s`."""


class LeasedLetter(Letter):
    """A letter that a poller has for a while."""

    receipt: str
    """To acknowledge it with, or to give it back."""
    times: int
    """How often it was given to a poller of this consumer, this time included."""
    leased_until: dt.datetime


class Leased(pydantic.BaseModel):
    """What a poll has given."""

    items: list[LeasedLetter]
    has_more: bool
    """Whether to poll on at once."""


class Receipts(Nothing):
    """Letters that a poller has."""

    receipts: Annotated[list[Annotated[str, Field(max_length=cursor.MAX_CHARS)]], Field(max_length=1000)]


class GivenBack(Receipts):
    """Letters that cannot be handled now."""

    wait_s: Seconds = 0
    """After how long they are given again."""


class Done(pydantic.BaseModel):
    """Of which letters it was done, by their ids. Missing: what another poller has by now, or was done before."""

    letters: list[str]


def lease(call: Call) -> Leased | Awaited:
    """Give letters to a poller; when there is none, it may wait for one."""
    wanted, now = call.body_as(Lease), dt.datetime.now(dt.UTC)
    try:
        polled = consumers.lease(
            call.connection, whose(call), call.path["consumer_id"], limit=wanted.limit, lease_s=wanted.lease_s, now=now
        )
    except errors.RegistrationError:  # it says that there is none
        raise problems.not_found("consumer") from None
    items = [
        LeasedLetter(
            receipt=one.receipt.text(), times=one.times, leased_until=one.until, **dict(dead_letters.shown(one.letter))
        )
        for one in polled.leased
    ]
    answer = Leased(items=items, has_more=polled.has_more)
    return answer if items or polled.has_more or not wanted.wait_s else Awaited(answer, wanted.wait_s)


def acknowledge(call: Call) -> Done:
    """Take letters as handled."""
    receipts = _receipts(call)
    return _done(call, consumers.acknowledge(call.connection, whose(call), call.path["consumer_id"], receipts))


def give_back(call: Call) -> Done:
    """Let letters be given again."""
    receipts, name, wait_s = _receipts(call), call.path["consumer_id"], call.body_as(GivenBack).wait_s
    now = dt.datetime.now(dt.UTC)
    return _done(call, consumers.give_back(call.connection, whose(call), name, receipts, now=now, wait_s=wait_s))


def _receipts(call: Call) -> list[cursor.Receipt]:
    return [cursor.Receipt.read(text) for text in call.body_as(Receipts).receipts]


def _done(call: Call, positions: list[int]) -> Done:
    if not positions:
        consumer_routes.found(call)
    return Done(letters=[str(position) for position in positions])


ROUTES = (
    Route(
        method="POST", path="/v1/dead-letter-consumers/{consumer_id}/lease", name="leaseDeadLetters",
        summary="Take letters that no other poller of this consumer has. Waits for one, if asked to.",
        scopes=routes.POLLERS, handler=lease, query=Whose, body=Lease, answer=Leased, is_poll=True,
    ),
    Route(
        method="POST", path="/v1/dead-letter-consumers/{consumer_id}/ack", name="acknowledgeDeadLetters",
        summary="Be done with letters: this consumer is not given them again.",
        scopes=routes.POLLERS, handler=acknowledge, query=Whose, body=Receipts, answer=Done, is_poll=True,
    ),
    Route(
        method="POST", path="/v1/dead-letter-consumers/{consumer_id}/nack", name="giveDeadLettersBack",
        summary="Have letters given again, to whoever polls, at once or after a wait.",
        scopes=routes.POLLERS, handler=give_back, query=Whose, body=GivenBack, answer=Done, is_poll=True,
    ),
)  # fmt: skip
