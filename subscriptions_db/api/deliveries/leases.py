"""Lease, acknowledge (ack) and return (nack) dead letters, for pollers.

Runs in the API.
"""

from __future__ import annotations

import datetime as dt
from typing import Annotated

import pydantic
from pydantic import Field

from delivery import errors
from subscriptions_db.api.contract import problems, routes
from subscriptions_db.api.contract.routes import Call, CustomerQuery, LongPoll, NoParameters, Route, WaitS
from subscriptions_db.api.deliveries import consumers as consumer_routes
from subscriptions_db.api.deliveries import dead_letters
from subscriptions_db.api.deliveries.dead_letters import MAX_LETTERS, DeadLetter, customer_of
from subscriptions_db.archive.search import consumers, cursor

Seconds = Annotated[float, Field(ge=0, le=consumers.MAX_LEASE_S)]


class LeaseRequest(NoParameters):
    """A request to lease dead letters."""

    limit: Annotated[int, Field(ge=1, le=MAX_LETTERS)] = 20
    lease_s: Seconds = 60
    """Seconds during which no other poller of the consumer gets the leased dead letters."""
    wait_s: WaitS = 0
    """Seconds to wait if there is no dead letter; at most `api.max_poll_s`."""


class LeasedDeadLetter(DeadLetter):
    """A dead letter that is leased to a poller."""

    receipt: str
    """The receipt handle for ack and nack."""
    times: int
    """Number of leases of the dead letter by this consumer, this one included."""
    leased_until: dt.datetime


class LeasedDeadLetters(pydantic.BaseModel):
    """The leased dead letters."""

    items: list[LeasedDeadLetter]
    has_more: bool
    """True: there may be more. Poll again at once."""


class ReceiptHandles(NoParameters):
    """Receipt handles of leased dead letters."""

    receipts: Annotated[list[str], Field(max_length=1000)]


class NackRequest(ReceiptHandles):
    """Receipt handles of dead letters to return to the consumer."""

    wait_s: Seconds = 0
    """Seconds before the dead letters can be leased again."""


class RefusedReceipt(pydantic.BaseModel):
    """A receipt handle that is not valid. The other receipt handles of the request are handled."""

    index: int
    """The place of the receipt handle in `receipts`; the first is 0."""
    problem: str


class SettledLetters(pydantic.BaseModel):
    """The ids of the dead letters that the request acked or nacked.

    An id is missing if another poller has leased the dead letter by now, or if it was acked or nacked before.
    """

    letters: list[str]
    refused: list[RefusedReceipt] = []


def lease(call: Call) -> LeasedDeadLetters | LongPoll:
    """Lease dead letters to a poller, or start a long poll if there is none and the request has `wait_s`."""
    wanted, now = call.body_as(LeaseRequest), dt.datetime.now(dt.UTC)
    try:
        polled = consumers.lease(
            call.connection, customer_of(call), call.path["consumer_id"], limit=wanted.limit, lease_s=wanted.lease_s, now=now
        )
    except errors.RegistrationError:  # the consumer does not exist
        raise problems.not_found("consumer") from None
    items = [
        LeasedDeadLetter(
            receipt=leased.receipt.text(),
            times=leased.times,
            leased_until=leased.until,
            **dict(dead_letters.shown(leased.letter)),
        )
        for leased in polled.leased
    ]
    answer = LeasedDeadLetters(items=items, has_more=polled.has_more)
    return answer if items or polled.has_more or not wanted.wait_s else LongPoll(answer, wanted.wait_s)


def ack(call: Call) -> SettledLetters:
    """Acknowledge dead letters: the consumer does not get them again."""
    receipts, refused = _receipts(call)
    positions = consumers.ack(call.connection, customer_of(call), call.path["consumer_id"], receipts)
    return _settled(call, positions, refused)


def nack(call: Call) -> SettledLetters:
    """Return dead letters: any poller of the consumer can lease them again."""
    receipts, refused = _receipts(call)
    name, wait_s, now = call.path["consumer_id"], call.body_as(NackRequest).wait_s, dt.datetime.now(dt.UTC)
    positions = consumers.nack(call.connection, customer_of(call), name, receipts, now=now, wait_s=wait_s)
    return _settled(call, positions, refused)


def _receipts(call: Call) -> tuple[list[cursor.ReceiptHandle], list[RefusedReceipt]]:
    """Return the valid receipt handles of a request, and the refused ones."""
    receipts, refused = [], []
    for index, text in enumerate(call.body_as(ReceiptHandles).receipts):
        try:
            receipts.append(cursor.ReceiptHandle.read(text))
        except errors.RegistrationError as exc:
            refused.append(RefusedReceipt(index=index, problem=exc.problem))
    return receipts, refused


def _settled(call: Call, positions: list[int], refused: list[RefusedReceipt]) -> SettledLetters:
    if not positions:
        consumer_routes.existing_consumer(call)
    return SettledLetters(letters=[str(position) for position in positions], refused=refused)


ROUTES = (
    Route(
        method="POST", path="/v1/dead-letter-consumers/{consumer_id}/lease", name="leaseDeadLetters",
        summary="Lease dead letters that no other poller of the consumer has. With `wait_s`, wait for one.",
        scopes=routes.POLLERS, handler=lease, query=CustomerQuery, body=LeaseRequest, answer=LeasedDeadLetters, is_poll=True,
    ),
    Route(
        method="POST", path="/v1/dead-letter-consumers/{consumer_id}/ack", name="acknowledgeDeadLetters",
        summary="Acknowledge dead letters: the consumer does not get them again.",
        scopes=routes.POLLERS, handler=ack, query=CustomerQuery, body=ReceiptHandles, answer=SettledLetters, is_poll=True,
    ),
    Route(
        method="POST", path="/v1/dead-letter-consumers/{consumer_id}/nack", name="giveDeadLettersBack",
        summary="Return dead letters to the consumer, at once or after a delay.",
        scopes=routes.POLLERS, handler=nack, query=CustomerQuery, body=NackRequest, answer=SettledLetters, is_poll=True,
    ),
)  # fmt: skip
