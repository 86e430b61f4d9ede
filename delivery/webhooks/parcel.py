"""Write what waits in the retry lane as bytes, and read it back: parcels, turns, and the reports that come back of turns.

Runs in the executors and in the command. Must not import pyspark or psycopg. These bytes stand in the retries topic and in the
lane's state over restarts and upgrades: a new field stands at the end and has a default, so that old bytes can be read; VERSION
rises when that is not enough.

    a lane ─ Postponed ─► retries topic ─► shard ─ Turn ─► deliver ─ Report ─► retries topic ─► the same shard

A shard lets parcels of one endpoint leave together, as a turn, and keeps them until the turn's report says what came of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from delivery.model import (
    KEPT_RESPONSE_BYTES,
    Again,
    Attempt,
    CustomerId,
    Delivery,
    EndpointId,
    LeaveReason,
    Outcome,
    Revision,
    SubscriptionId,
)
from delivery.webhooks import segment, versioned
from delivery.webhooks.batch_message import BatchDelivery

VERSION = 1
NO_REVISION = Revision(0)
MAX_STORY = 10
"""So many of the last attempts are kept for the dead letter."""


class Parcel(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A delivery, or a batch of them, that waits for its next attempt."""

    packed: list[bytes]
    """Its events, as segment.unpacked reads them; of a delivery in direct mode one."""
    subscriptions: list[SubscriptionId]
    through: list[int]
    """By which subscription each event is due, by place in the list. Empty where all are due by the one."""
    left_by: LeaveReason | None
    """Why the batch left; None: not a batch."""
    again_at_ms: int
    """Not to be attempted before then."""
    since_ms: int
    """When it came to the retry lane."""
    expires_ms: int
    """When it is given up, whatever it waits for."""
    reason: str
    """Why it waits: a word of delivery.webhooks.retry, or an error class."""
    retries: int = 0
    """Waits of the endpoint's schedule that are used up."""
    attempts: int = 0
    """How often it was attempted, in all lanes."""
    story: tuple[Attempt, ...] = ()
    """The last MAX_STORY attempts."""
    order_key: str | None = None
    """What it must stay in order with; None: nothing."""
    replay: str | None = None
    """The replay that asked for it; None: it was due."""
    under_way: bytes | None = None
    """By this name is told what came of the attempt that went on when it came here; then it need not be made."""
    revision: Revision = NO_REVISION
    """No later one of the registry has made it due. A registry that is older may not know yet whom it is for."""

    @property
    def size(self) -> int:
        """Bytes of its events."""
        return sum(map(len, self.packed))

    @property
    def written_bytes(self) -> int:
        """About as many as it takes when it is written: its events, and the story of its attempts."""
        return self.size + sum(200 + len(attempt.detail) + len(attempt.response) for attempt in self.story) + 200

    def arrived(self, now_ms: int) -> Parcel:
        """Return it by the clock of its shard, when that has `now_ms`: one that comes from the future was told by a fast clock.

        Only the differences between its times are true then, and they stay.
        """
        ahead_ms = self.since_ms - now_ms
        if ahead_ms <= 0:
            return self
        return msgspec.structs.replace(
            self, since_ms=now_ms, again_at_ms=self.again_at_ms - ahead_ms, expires_ms=self.expires_ms - ahead_ms
        )

    def returned(self, back: Back) -> Parcel:
        """Return it as it waits after a further attempt."""
        story = (*self.story, *back.attempts)
        return msgspec.structs.replace(
            self,
            again_at_ms=back.again.at_ms,
            retries=back.again.retries,
            reason=back.reason,
            attempts=max((attempt.number for attempt in back.attempts), default=self.attempts),
            story=story[-MAX_STORY:],
            under_way=None,
        )


class Back(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A parcel of a turn that has not ended."""

    place: int
    """In the turn."""
    again: Again
    reason: str
    attempts: tuple[Attempt, ...] = ()
    """What was attempted in this turn."""


class Postponed(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="postponed"):
    """What a lane hands over of one endpoint, in order of arrival."""

    endpoint_id: EndpointId
    customer_id: CustomerId
    parcels: list[Parcel]
    settled: list[bytes] = []
    """Names of parcels that came before: what was under way of them has ended, and is told."""
    accepts: bool | None = None
    """What else there is to say of the endpoint: it has accepted something of late; or not, and no parcel tells of that. None:
    nothing."""
    at_ms: int = 0
    """When that was said."""


class Report(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="report"):
    """What came of a turn. Of its parcels, those that are not in `back` have ended."""

    endpoint_id: EndpointId
    customer_id: CustomerId
    order_key: str | None
    turn: int
    delivered: int
    """Parcels that were accepted."""
    failed: int
    """Attempts that say that the endpoint is ill."""
    hold: str | None
    """Why nothing at all was attempted: one of window.STOPPED; else None."""
    retry_after_s: float | None
    """The longest time for which an answer asked for quiet."""
    back: list[Back]
    refused: int = 0
    """Answers that accepted nothing and yet came from an endpoint that is alive: what circuit.FAILED leaves."""
    parcels: int = 0
    """How many the turn had; 0: an older version did not say. By other settings a turn of this number may be another one."""
    at_ms: int = 0
    """When it was made; 0: an older version did not say."""

    def back_by(self, now_ms: int) -> list[Back]:
        """Return `back` by the clock of its shard, when that has `now_ms`: see Parcel.arrived."""
        ahead_ms = self.at_ms - now_ms
        if ahead_ms <= 0:
            return self.back
        return [
            msgspec.structs.replace(each, again=Again(each.again.at_ms - ahead_ms, each.again.retries)) for each in self.back
        ]


class Turn(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Parcels of one endpoint that leave their shard together."""

    endpoint_id: EndpointId
    customer_id: CustomerId
    order_key: str | None
    """Set: they are attempted one after the other, and no further after one that fails."""
    number: int
    """Which turn of its flow it is; the report names it. 0: no report is wanted, because `given_up` is set."""
    given_up: str | None
    """Set: they are not attempted any more and become dead letters for this reason, retry.NO_ROOM or retry.EXPIRED."""
    parcels: list[Parcel]
    is_probe: bool = False
    """Whether the endpoint was failing when it was last heard of: that there is no way to it says nothing new."""


_encoder = msgspec.msgpack.Encoder()
_messages: msgspec.msgpack.Decoder[Postponed | Report] = msgspec.msgpack.Decoder(Postponed | Report)
_turns = msgspec.msgpack.Decoder(Turn)


def of(outcome: Outcome[Delivery], *, now_ms: int, revision: Revision = NO_REVISION) -> Parcel:
    """Return a postponed delivery as a parcel."""
    delivery = outcome.delivery
    packed = segment.item(delivery.event, now_ms).packed
    made = _parcel(outcome, [packed], [delivery.subscription.subscription_id], None, now_ms=now_ms, revision=revision)
    return made if delivery.order_key is None else msgspec.structs.replace(made, order_key=delivery.order_key)


def of_batch(
    outcome: Outcome[BatchDelivery], packed: Sequence[bytes], *, now_ms: int, revision: Revision = NO_REVISION
) -> Parcel:
    """Return a postponed batch, whose events are `packed`, as a parcel."""
    return _parcel(
        outcome, list(packed), list(outcome.delivery.through), outcome.delivery.left_by, now_ms=now_ms, revision=revision
    )


def _parcel(
    outcome: Outcome[Delivery] | Outcome[BatchDelivery],
    packed: list[bytes],
    through: list[SubscriptionId],
    left_by: LeaveReason | None,
    *,
    now_ms: int,
    revision: Revision,
) -> Parcel:
    assert outcome.again is not None, "every postponed outcome has it"  # noqa: S101
    assert outcome.reason is not None, "every postponed outcome has it"  # noqa: S101
    places = {name: place for place, name in enumerate(dict.fromkeys(through))}
    story = (*outcome.earlier, *outcome.attempts)
    return Parcel(
        packed=packed,
        subscriptions=list(places),
        through=[places[name] for name in through] if len(places) > 1 else [],
        left_by=left_by,
        again_at_ms=outcome.again.at_ms,
        since_ms=now_ms,
        expires_ms=now_ms + round(outcome.delivery.endpoint.retrying.max_age_s * 1000),
        reason=outcome.reason,
        retries=outcome.again.retries,
        attempts=len(story),
        story=tuple(map(as_kept, story[-MAX_STORY:])),
        under_way=outcome.under_way,
        revision=revision,
    )


def as_kept(attempt: Attempt) -> Attempt:
    """Return what a dead letter tells of it: an answer to a batch may be longer."""
    return (
        attempt
        if len(attempt.response) <= KEPT_RESPONSE_BYTES
        else attempt._replace(response=attempt.response[:KEPT_RESPONSE_BYTES])
    )


def encoded(message: Postponed | Report | Turn) -> bytes:
    """Return it as it is written."""
    return versioned.marked(VERSION, _encoder.encode(message))


def message(written: bytes) -> Postponed | Report:
    """Return a record of the retries topic."""
    return _messages.decode(versioned.read(written, VERSION, "a record of the retries topic"))


def turn(written: bytes) -> Turn:
    """Return a turn that left its shard."""
    return _turns.decode(versioned.read(written, VERSION, "a turn of the retry lane"))
