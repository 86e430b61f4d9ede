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
from delivery.webhooks.batching import segment
from delivery.webhooks.sending.batch_payload import BatchDelivery
from delivery.webhooks.state import versioning

VERSION = 1
NO_REVISION = Revision(0)
MAX_STORY = 10
"""So many of the last attempts are kept for the dead letter."""


class Parcel(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A delivery, or a batch of them, that waits for its next attempt."""

    packed: list[bytes]
    """Its events, each as the msgpack bytes of a Packed. One event: a delivery in direct mode."""
    subscriptions: list[SubscriptionId]
    """Subscriptions by which its events are due, each once."""
    through: list[int]
    """For each event the place in `subscriptions`, from 0. Empty where there is one subscription."""
    left_by: LeaveReason | None
    """Why the batch left: a LeaveReason. Null: not a batch."""
    again_at_ms: int
    """Earliest time of its next attempt."""
    since_ms: int
    """When it came to the retry lane."""
    expires_ms: int
    """When it is given up, whatever it waits for."""
    reason: str
    """Why it waits: a word of `delivery.webhooks.policy.retry_decision`, or an error class."""
    retries: int = 0
    """Waits of the endpoint's schedule that are used up."""
    attempts: int = 0
    """How often it was attempted, in all lanes."""
    story: tuple[Attempt, ...] = ()
    """Its last ten attempts."""
    order_key: str | None = None
    """Order key: entries of the same key are delivered one after the other. Null: no order. Since 2026-11-21."""
    replay: str | None = None
    """Replay that asked for it. Null: it was due. Since 2026-11-21."""
    under_way: bytes | None = None
    """Name of its background attempt, which was still in flight when it was written. A Postponed record with this name in
    `settled` says that the attempt has completed. Null: there is none. Since 2026-11-22."""
    revision: Revision = NO_REVISION
    """Newest revision of the registry that may have made it due. A worker with an older one does not know yet whom it is for.
    0: not said. Since 2026-11-23."""

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
    """Its place in the turn, from 0."""
    again: Again
    """When its next attempt is."""
    reason: str
    """Why it waits again: a word of `delivery.webhooks.policy.retry_decision`, or an error class."""
    attempts: tuple[Attempt, ...] = ()
    """Its attempts in this turn."""


class Postponed(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="postponed"):
    """Deliveries and batches that a lane, a redrive or a replay defers to the retry lane, all of one endpoint."""

    endpoint_id: EndpointId
    """Endpoint of all of it."""
    customer_id: CustomerId
    """Owner of the endpoint."""
    parcels: list[Parcel]
    """The deliveries and batches, in order of arrival."""
    settled: list[bytes] = []
    """Names of background attempts that have completed, and whose results are in their topics. Since 2026-11-22."""
    accepts: bool | None = None
    """Health hint of a fast lane. True: the endpoint accepted a request lately. False: it did not, and no parcel says so. Null:
    no hint. Since 2026-11-23."""
    at_ms: int = 0
    """When the health hint was true. Since 2026-11-23."""


class Report(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="report"):
    """The result of a turn: of parcels of one endpoint that left their shard together. Those not in `back` have ended."""

    endpoint_id: EndpointId
    """Endpoint of the turn."""
    customer_id: CustomerId
    """Owner of the endpoint."""
    order_key: str | None
    """Order key of the turn's parcels. Null: they have no order."""
    turn: int
    """Number of the turn, by which its shard finds it."""
    delivered: int
    """Parcels that the endpoint accepted."""
    failed: int
    """Attempts whose failure shows that the endpoint is unhealthy."""
    hold: str | None
    """Why nothing was attempted, such as `endpoint_paused`: a word of `window.STOPPED`. Null: something was."""
    retry_after_s: float | None
    """Longest time for which a response asked to wait. Null: none asked."""
    back: list[Back]
    """The parcels that wait for a further attempt."""
    refused: int = 0
    """Responses that accepted nothing, but show a healthy endpoint, such as most 4xx. Since 2026-11-21."""
    parcels: int = 0
    """Number of parcels in the turn. It tells apart two turns of this number by different settings. 0: not said. Since
    2026-11-22."""
    at_ms: int = 0
    """When the report was made. 0: not said. Since 2026-11-23."""

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
        outcome,
        list(packed),
        list(outcome.delivery.subscription_ids),
        outcome.delivery.left_by,
        now_ms=now_ms,
        revision=revision,
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
    return versioning.marked(VERSION, _encoder.encode(message))


def message(written: bytes) -> Postponed | Report:
    """Return a record of the retries topic."""
    return _messages.decode(versioning.read(written, VERSION, "a record of the retries topic"))


def turn(written: bytes) -> Turn:
    """Return a turn that left its shard."""
    return _turns.decode(versioning.read(written, VERSION, "a turn of the retry lane"))
