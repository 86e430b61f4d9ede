"""Lease dead letters to pollers; acknowledge (ack) them, give them back (nack), and extend their leases, by receipt handles.

Runs in the API.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Sequence
from typing import Annotated, Literal, Protocol

from pydantic import Field

from delivery import errors
from subscriptions_db import described
from subscriptions_db.api.contract import crud, problems, routes
from subscriptions_db.api.contract.routes import Call, CustomerQuery, LongPoll, NoParameters, Route, WaitS
from subscriptions_db.api.deliveries import consumers as consumer_routes
from subscriptions_db.api.deliveries import dead_letters
from subscriptions_db.api.deliveries.dead_letters import MAX_LETTERS, DeadLetter, customer_of
from subscriptions_db.archive.search import archive_positions, consumers, receipts
from subscriptions_db.archive.search.receipts import ReceiptRefusal
from subscriptions_db.postgres import connect

LeaseS = Annotated[float, Field(ge=1, le=consumers.MAX_LEASE_S)]
"""Seconds of a lease. To end a lease at once, nack its dead letter."""


class LeaseRequest(NoParameters):
    """A request to lease dead letters."""

    limit: Annotated[int, Field(ge=1, le=MAX_LETTERS)] = 20
    """Maximum dead letters of the answer."""
    lease_s: LeaseS = 60
    """Seconds during which no other poller of the consumer gets the leased dead letters."""
    wait_s: WaitS = 0
    """Seconds to wait if there is no dead letter; at most `api.max_poll_s`."""


class LeasedDeadLetter(DeadLetter):
    """A dead letter that is leased to a poller."""

    receipt: str
    """The receipt handle for ack, nack and extend."""
    times: int
    """Number of leases of the dead letter by this consumer, including this lease. The count begins again at 0 after a seek or
    an unpark."""
    leased_until: dt.datetime
    """When the lease ends."""


class LeasedDeadLetters(described.DescribedModel):
    """The leased dead letters."""

    items: list[LeasedDeadLetter]
    """The leased dead letters, in the order of the archive."""
    has_more: bool
    """True: there may be more. Poll again at once."""


class ReceiptHandles(NoParameters):
    """Receipt handles of leased dead letters."""

    receipts: Annotated[list[str], Field(max_length=1000)]
    """The receipt handles, as `lease` returned them."""


class NackRequest(ReceiptHandles):
    """Receipt handles of dead letters to give back to the consumer."""

    wait_s: Annotated[float, Field(ge=0, le=consumers.MAX_LEASE_S)] = 0
    """Seconds before the dead letters can be leased again."""


class ExtendRequest(ReceiptHandles):
    """Receipt handles of dead letters, and the new end of their leases."""

    lease_s: LeaseS
    """Seconds from now until the leases end. A lease ends 12 hours after its poll at the latest."""


class RefusedReceipt(described.DescribedModel):
    """A text in `receipts` that is no receipt handle. The other receipt handles of the request are handled."""

    index: int
    """The place of the text in `receipts`; the first is 0."""
    problem: str
    """The reason why the text is no receipt handle."""


class SettledReceipt(described.DescribedModel):
    """The result of the request for one receipt handle. A refused receipt handle affects no other."""

    index: int
    """The place of the receipt handle in `receipts`; the first is 0."""
    result: Literal["acknowledged", "returned", "extended", "refused"]
    """The result for this receipt handle."""
    letter: str | None = None
    """The id of the dead letter. Null: refused."""
    reason: ReceiptRefusal | None = None
    """The reason of a refusal. `invalid`: the text is not a receipt handle. `not_leased`: the consumer has no lease of this
    receipt handle, as after an ack, a nack or a seek. `leased_again`: the dead letter was leased again since, with another
    receipt handle. `parked`: the dead letter is parked, and can only be acked. `too_long`: the lease has existed for 12
    hours."""
    leased_until: dt.datetime | None = None
    """The new end of an extended lease. Null: the lease was not extended."""


class SettledLetters(described.DescribedModel):
    """The dead letters that the request acked, nacked or extended, and the result of each receipt handle.

    `letters` has the dead letters whose receipt handles were not refused. `results` gives the reason of each refusal.
    """

    letters: list[str]
    """The ids of the dead letters, without those of refused receipt handles."""
    refused: list[RefusedReceipt] = Field(default=[])
    """The texts that are no receipt handles. `results` has all refusals."""
    results: list[SettledReceipt]
    """One result for each text in the request's `receipts`, in their order."""


def lease(call: Call) -> LeasedDeadLetters | LongPoll:
    """Lease dead letters to a poller.

    Return a long poll instead if the request has `wait_s`, no dead letter was leased, and `has_more` is False. Raise Refused
    with 404 if there is no such consumer. Raise Refused with 422 if a request with an operator's key names no customer, or one
    with a customer's key names another customer.
    """
    wanted, now = call.body_as(LeaseRequest), dt.datetime.now(dt.UTC)
    try:
        polled = consumers.lease(
            call.connection,
            customer_of(call),
            call.path["consumer_id"],
            limit=wanted.limit,
            lease_s=wanted.lease_s,
            now=now,
            of_whole_customer=functools.partial(crud.of_whole_customer, call),
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
    """Acknowledge dead letters: the consumer does not get them again, except after a seek to an earlier place."""
    return _settled(call, "acknowledged", receipts.ack)


def nack(call: Call) -> SettledLetters:
    """Give leased dead letters back to the consumer. Its pollers can lease them again after `wait_s`.

    A dead letter that was leased `max_receives` times is parked instead, when a poll finds it after `wait_s`.
    """
    now, wait_s = dt.datetime.now(dt.UTC), call.body_as(NackRequest).wait_s
    return _settled(call, "returned", functools.partial(receipts.nack, now=now, wait_s=wait_s))


def extend(call: Call) -> SettledLetters:
    """Let leases end `lease_s` seconds from now, sooner or later than before, but at most 12 hours after their poll."""
    now, lease_s = dt.datetime.now(dt.UTC), call.body_as(ExtendRequest).lease_s
    return _settled(call, "extended", functools.partial(receipts.extend, now=now, lease_s=lease_s))


class _Settle(Protocol):
    """The type of the functions `ack`, `nack` and `extend` of receipts.py, which return a result for each receipt, in order."""

    def __call__(
        self,
        connection: connect.Connection,
        customer_id: str,
        name: str,
        receipts: Sequence[archive_positions.ReceiptHandle],
        /,
    ) -> list[receipts.ReceiptResult]: ...


def _settled(call: Call, done: Literal["acknowledged", "returned", "extended"], settle: _Settle) -> SettledLetters:
    """Pass the valid receipt handles of a request to `settle`, and return the result of each text in `receipts`.

    `done` is the result of a receipt handle that `settle` does not refuse. Raise Refused with 404 if the consumer is unknown,
    and with 422 as `lease` does.
    """
    texts = call.body_as(ReceiptHandles).receipts
    handles, refused = _handles(texts)
    settled = settle(call.connection, customer_of(call), call.path["consumer_id"], list(handles.values()))
    results = [SettledReceipt(index=receipt.index, result="refused", reason=ReceiptRefusal.INVALID) for receipt in refused]
    for index, receipt in zip(handles, settled, strict=True):
        if receipt.refusal is not None:
            results.append(SettledReceipt(index=index, result="refused", reason=receipt.refusal))
        else:
            results.append(SettledReceipt(index=index, result=done, letter=str(receipt.position), leased_until=receipt.until))
    positions = sorted({receipt.position for receipt in settled if receipt.refusal is None})
    if not positions:
        consumer_routes.existing_consumer(call)
    results.sort(key=lambda result: result.index)
    return SettledLetters(letters=[str(position) for position in positions], refused=refused, results=results)


def _handles(texts: Sequence[str]) -> tuple[dict[int, archive_positions.ReceiptHandle], list[RefusedReceipt]]:
    """Return the valid receipt handles by their index in `texts`, and the texts that are no receipt handles."""
    handles, refused = {}, []
    for index, text in enumerate(texts):
        try:
            handles[index] = archive_positions.ReceiptHandle.read(text)
        except errors.RegistrationError as exc:
            refused.append(RefusedReceipt(index=index, problem=exc.problem))
    return handles, refused


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
        method="POST", path="/v1/dead-letter-consumers/{consumer_id}/extend", name="extendDeadLetterLeases",
        summary="Change the end of leases, up to 12 hours after their poll.",
        scopes=routes.POLLERS, handler=extend, query=CustomerQuery, body=ExtendRequest, answer=SettledLetters, is_poll=True,
    ),
    Route(
        method="POST", path="/v1/dead-letter-consumers/{consumer_id}/nack", name="giveDeadLettersBack",
        summary="Give dead letters back to the consumer, at once or after a delay.",
        scopes=routes.POLLERS, handler=nack, query=CustomerQuery, body=NackRequest, answer=SettledLetters, is_poll=True,
    ),
)  # fmt: skip
