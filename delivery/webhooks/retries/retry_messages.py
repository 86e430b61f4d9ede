"""Define the messages of the retry lane (Postponed, leases and reports), write them as bytes, and read them.

Runs in the executors, on the driver, in the archive and in the commands. The bytes stay in the retries topic and in the lane's
state over restarts and upgrades. A new field comes at the end and has a default, so that old bytes can be read. VERSION rises
with a change that a default cannot bridge.

    a lane ─ Postponed ─► retries topic ─► shard ─ Lease ─► retry lane's worker ─ Report ─► retries topic ─► the same shard

A shard is one key of Spark's state, with the retry entries of a part of all endpoints. A shard leases entries of one FIFO
together, and keeps them until the lease's report arrives. Entries that the report requeues stay longer. If no report arrives in
time, the entries are leased again. Entries that the shard gives up leave its state with a lease of their own: the worker
dead-letters, skips or rejects them, and sends no report.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import msgspec

from delivery.model import KEPT_RESPONSE_BYTES, Attempt, Delivery, LeaveReason, NextAttempt, Outcome
from delivery.registry_model import CustomerId, EndpointId, Revision, SubscriptionId
from delivery.webhooks.batching import segment
from delivery.webhooks.sending.batch_payload import BatchDelivery
from delivery.webhooks.state import versioning

VERSION = 1
NO_REVISION = Revision(0)
LAG_CHECK_MS = 60_000
"""Most milliseconds for which a due entry waits for a completion that may be unread, before the shard checks its lag again."""
MAX_HISTORY = 10
"""Number of a delivery's last attempts that its retry entry keeps for the dead letter."""


class RetryEntry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A delivery, or a batch, that waits in the retry lane for its next attempt."""

    packed: list[bytes]
    """Events of the delivery or batch, each as the msgpack bytes of a Packed. A delivery in direct mode has one."""
    subscriptions: list[SubscriptionId]
    """Subscriptions by which the events are due, each once."""
    subscription_places: list[int]
    """For each event the place in `subscriptions`, from 0. Empty where there is one subscription."""
    left_by: LeaveReason | None
    """The reason why the events became a batch: a LeaveReason. Null: the entry is a delivery in direct mode."""
    again_at_ms: int
    """Earliest time of the next attempt."""
    since_ms: int
    """When the entry was postponed to the retry lane."""
    expires_ms: int
    """Earliest time at which the entry is given up, for whatever reason it waits."""
    reason: str
    """The reason why the entry waits: a word of `delivery.webhooks.policy.retry_reasons`, an error class, or `unforeseen`."""
    retries: int = 0
    """Number of waits of the endpoint's schedule that are used up."""
    attempts: int = 0
    """Number of attempts with a result so far, in all lanes."""
    history: tuple[Attempt, ...] = ()
    """The last ten attempts."""
    order_key: str | None = None
    """Order key: entries of the same key are delivered one after the other. Null: no order. Since 2026-11-21."""
    replay: str | None = None
    """Replay that asked for the delivery. Null: the delivery was due. Since 2026-11-21."""
    background_attempt: bytes | None = None
    """Name of the background attempt that was in flight when the entry was written. A Postponed record with this name in
    `settled` says that the attempt has completed. Null: no attempt was in flight. Since 2026-11-22."""
    revision: Revision = NO_REVISION
    """Newest revision of the registry that the writing worker had used. The delivery became due by this revision or an earlier
    one. A worker with an older revision may not know the endpoint yet. 0: unknown. Since 2026-11-23."""

    @property
    def size(self) -> int:
        """Return the number of bytes of the events. An attempt history may have more: to bound memory, take `written_bytes`."""
        return sum(map(len, self.packed))

    @property
    def written_bytes(self) -> int:
        """Return an estimate of the entry's bytes in a record: its events and its attempt history."""
        return self.size + sum(200 + len(attempt.detail) + len(attempt.response) for attempt in self.history) + 200

    def on_shard_clock(self, now_ms: int) -> RetryEntry:
        """Return the entry with its times on the clock of its shard, which reads `now_ms`.

        An entry whose `since_ms` is in the future was written by a worker whose clock is fast. `since_ms`, `again_at_ms` and
        `expires_ms` move back by the same difference, so that `since_ms` is `now_ms`. Any other entry is unchanged.
        """
        ahead_ms = self.since_ms - now_ms
        if ahead_ms <= 0:
            return self
        return msgspec.structs.replace(
            self, since_ms=now_ms, again_at_ms=self.again_at_ms - ahead_ms, expires_ms=self.expires_ms - ahead_ms
        )

    def due_at(self, now_ms: int) -> RetryEntry:
        """Return the entry with its next attempt brought forward to `now_ms`; unchanged if it is due already."""
        return self if self.again_at_ms <= now_ms else msgspec.structs.replace(self, again_at_ms=now_ms)

    def wakes_at_ms(self, behind_ms: int, now_ms: int) -> int:
        """Return when the entry's wait ends, in ms since the epoch.

        1. An entry without a background attempt waits until `again_at_ms`, or until `expires_ms` if that is sooner.
        2. An entry with a background attempt waits until `again_at_ms` plus `behind_ms`, and does not expire meanwhile: a shard
           that is `behind_ms` behind in the retries topic reads the attempt's completion that much later. The shard may catch
           up sooner, so the wait ends LAG_CHECK_MS after `now_ms` at the latest, but not before `again_at_ms`. The caller then
           checks the lag again.
        """
        if self.background_attempt is not None:
            return min(self.again_at_ms + behind_ms, max(self.again_at_ms, now_ms + LAG_CHECK_MS))
        return min(self.again_at_ms, self.expires_ms)

    def requeued(self, requeue: Requeue) -> RetryEntry:
        """Return the entry as it waits after its lease, with the next attempt and the new attempts of `requeue`."""
        history = (*self.history, *requeue.attempts)
        return msgspec.structs.replace(
            self,
            again_at_ms=requeue.next_attempt.at_ms,
            retries=requeue.next_attempt.retries,
            reason=requeue.reason,
            attempts=max((attempt.number for attempt in requeue.attempts), default=self.attempts),
            history=history[-MAX_HISTORY:],
            background_attempt=None,
        )


class Requeue(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An entry of a lease that the worker puts back, to wait for a further attempt."""

    place: int
    """Place of the entry in the lease, from 0."""
    next_attempt: NextAttempt
    """Time of the entry's next attempt, and how many waits of the endpoint's schedule are used up."""
    reason: str
    """Reason why the entry waits again: a word of `delivery.webhooks.policy.retry_reasons`, an error class, or `unforeseen`."""
    attempts: tuple[Attempt, ...] = ()
    """The entry's attempts in this lease."""


class Postponed(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="postponed"):
    """A message about one endpoint to the endpoint's shard of the retry lane. Each message is one of these three kinds.

    1. `deferral`: deliveries and batches that a lane, a redrive or a replay gives to the retry lane. `resends` may be set.
    2. `completion`: background attempts that have completed. A completion may carry a health hint.
    3. `health_hint`: requests of a fast lane (direct, batch or real-time) to the endpoint succeed or fail.
    """

    endpoint_id: EndpointId
    """Endpoint of all entries."""
    customer_id: CustomerId
    """Owner of the endpoint."""
    entries: list[RetryEntry]
    """The deliveries and batches, in order of arrival."""
    settled: list[bytes] = []
    """Names of background attempts that have completed, and whose results are in the result topics. Since 2026-11-22."""
    accepts: bool | None = None
    """Health hint of a fast lane. True: the endpoint accepted a request lately. False: a request failed, and its delivery
    became a dead letter at once, so no entry reports the failure. Null: no hint. Since 2026-11-23."""
    at_ms: int = 0
    """When the health hint was made. 0 in a deferral and in a completion. Since 2026-11-23."""
    resends: bool = False
    """True if the entries are resends. If the delivery of a resend waits already, its next attempt is brought forward, and the
    resend is skipped. Since 2026-11-25."""

    @classmethod
    def deferral(
        cls, endpoint_id: EndpointId, customer_id: CustomerId, entries: list[RetryEntry], *, resends: bool = False
    ) -> Self:
        """Return the message that gives entries to the retry lane."""
        return cls(endpoint_id, customer_id, entries, resends=resends)

    @classmethod
    def completion(
        cls, endpoint_id: EndpointId, customer_id: CustomerId, settled: list[bytes], *, accepted: bool = False
    ) -> Self:
        """Return a message which says that the background attempts named in `settled` have completed.

        If the endpoint accepted at least one of these attempts (`accepted`), the message also has the health hint `accepts`.
        """
        return cls(endpoint_id, customer_id, [], settled, True if accepted else None)

    @classmethod
    def health_hint(cls, endpoint_id: EndpointId, customer_id: CustomerId, *, accepts: bool, at_ms: int) -> Self:
        """Return a message which says that, at `at_ms`, an endpoint accepted (`accepts`) or failed requests.

        The requests were those of the direct, batch or real-time lane.
        """
        return cls(endpoint_id, customer_id, [], accepts=accepts, at_ms=at_ms)

    @property
    def is_acceptance_only(self) -> bool:
        """Return True if the message says only that the endpoint accepts requests."""
        return bool(self.accepts) and not self.entries and not self.settled


class Report(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="report"):
    """The result of a lease, which a worker sends to the lease's shard.

    If `blocked` is set, no entry was attempted, and all entries of the lease stay in their FIFO. Otherwise an entry that is not
    in `requeued` has ended.
    """

    endpoint_id: EndpointId
    """Endpoint of the lease."""
    customer_id: CustomerId
    """Owner of the endpoint."""
    order_key: str | None
    """Order key of the lease's entries. Null: they have no order."""
    lease: int
    """Number of the lease, by which its shard finds it."""
    delivered: int
    """Number of entries that the endpoint accepted."""
    failed: int
    """Number of attempts whose failure shows that the endpoint is unhealthy."""
    blocked: str | None
    """Reason for no attempt, such as `endpoint_paused`: a word of `window.BLOCKED`. Null: the endpoint is not blocked."""
    retry_after_s: float | None
    """Longest time for which a response asked to wait. Null: none asked."""
    requeued: list[Requeue]
    """The entries that wait for a further attempt."""
    refused: int = 0
    """Number of responses that accepted nothing, but show a healthy endpoint, such as most 4xx. Since 2026-11-21."""
    entries: int = 0
    """Number of entries in the lease. A micro-batch that runs again with other settings may give the number of one lease to
    another lease. The number of entries tells them apart. 0: unknown. Since 2026-11-22."""
    at_ms: int = 0
    """When the report was made. 0: unknown. Since 2026-11-23."""
    is_throttled: bool = False
    """True if a response had the status 429. Since 2026-11-29."""
    poison: int = 0
    """Number of the `failed` attempts that may say more about their events than about the endpoint (`lease_triage.is_poison`).
    Since 2026-11-29."""

    def requeued_on_shard_clock(self, now_ms: int) -> list[Requeue]:
        """Return `requeued` with times on the clock of the shard, which reads `now_ms`.

        The worker set `at_ms` by its own clock. If `at_ms` is later than `now_ms`, the worker's clock is ahead. The method then
        subtracts `at_ms - now_ms` from each time.
        """
        ahead_ms = self.at_ms - now_ms
        if ahead_ms <= 0:
            return self.requeued
        return [
            msgspec.structs.replace(
                requeue, next_attempt=NextAttempt(requeue.next_attempt.at_ms - ahead_ms, requeue.next_attempt.retries)
            )
            for requeue in self.requeued
        ]


class Lease(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Retry entries of one endpoint that a shard gives to a worker, which attempts them for a limited time.

    If `given_up` is set, the worker ends the entries without an attempt: as dead letters, skipped or rejected. Entries to
    attempt come from the front of one FIFO, in its order.
    """

    endpoint_id: EndpointId
    customer_id: CustomerId
    order_key: str | None
    """The order key that all entries share. The worker attempts the entries one after the other, until one fails. None: the
    entries have no order."""
    number: int
    """Number of the lease in its shard, which its report names. 0: no report is expected, because `given_up` is set."""
    given_up: str | None
    """The reason why the entries end without an attempt. None: the entries are attempted. With NO_ROOM or EXPIRED of
    `retry_reasons`, the entries become dead letters for this reason, except events that are skipped, for example because their
    subscription was deleted or paused. With SkipReason.BROUGHT_FORWARD, all entries are skipped."""
    entries: list[RetryEntry]
    is_probe: bool = False
    """True if the endpoint's last report had only failures, or if the endpoint has not recovered from a back-off
    (Window.is_degraded). A further failure then says nothing about our network."""
    accepted_ms: int = 0
    """Time of the last report or health hint which says that the endpoint has accepted a request. 0: unknown. Since
    2026-11-29."""


_encoder = msgspec.msgpack.Encoder()
_messages: msgspec.msgpack.Decoder[Postponed | Report] = msgspec.msgpack.Decoder(Postponed | Report)
_leases = msgspec.msgpack.Decoder(Lease)


def new_entry(
    packed: list[bytes],
    subscription_ids: Sequence[SubscriptionId],
    *,
    left_by: LeaveReason | None,
    next_attempt: NextAttempt,
    max_age_s: float,
    reason: str,
    now_ms: int,
    attempts: int = 0,
    history: Sequence[Attempt] = (),
    order_key: str | None = None,
    replay: str | None = None,
    background_attempt: bytes | None = None,
    revision: Revision = NO_REVISION,
) -> RetryEntry:
    """Return the retry entry of a delivery or batch that is deferred to the retry lane at `now_ms`.

    `packed` has the events of the entry, and `subscription_ids` the subscription of each event. The entry keeps the last
    MAX_HISTORY attempts of `history`, with shortened responses (`shortened`), and expires `max_age_s` after `now_ms`.
    """
    places = {name: place for place, name in enumerate(dict.fromkeys(subscription_ids))}
    return RetryEntry(
        packed=packed,
        subscriptions=list(places),
        subscription_places=[places[name] for name in subscription_ids] if len(places) > 1 else [],
        left_by=left_by,
        again_at_ms=next_attempt.at_ms,
        since_ms=now_ms,
        expires_ms=now_ms + round(max_age_s * 1000),
        reason=reason,
        retries=next_attempt.retries,
        attempts=attempts,
        history=tuple(map(shortened, history[-MAX_HISTORY:])),
        order_key=order_key,
        replay=replay,
        background_attempt=background_attempt,
        revision=revision,
    )


def delivery_entry(outcome: Outcome[Delivery], *, now_ms: int, revision: Revision = NO_REVISION) -> RetryEntry:
    """Return the retry entry of a postponed delivery. `revision` is the newest registry revision that the worker has used."""
    delivery = outcome.delivery
    packed = [segment.item(delivery.event, now_ms).packed]
    subscription_ids = [delivery.subscription.subscription_id]
    return _entry(outcome, packed, subscription_ids, None, delivery.order_key, now_ms=now_ms, revision=revision)


def batch_entry(
    outcome: Outcome[BatchDelivery], packed: Sequence[bytes], *, now_ms: int, revision: Revision = NO_REVISION
) -> RetryEntry:
    """Return the retry entry of a postponed batch, whose events are `packed`.

    `revision` is the newest revision of the registry that the worker has used.
    """
    batch = outcome.delivery
    return _entry(outcome, list(packed), batch.subscription_ids, batch.left_by, None, now_ms=now_ms, revision=revision)


def _entry(
    outcome: Outcome[Delivery] | Outcome[BatchDelivery],
    packed: list[bytes],
    subscription_ids: Sequence[SubscriptionId],
    left_by: LeaveReason | None,
    order_key: str | None,
    *,
    now_ms: int,
    revision: Revision,
) -> RetryEntry:
    assert outcome.next_attempt is not None, "every postponed outcome has it"  # noqa: S101
    assert outcome.reason is not None, "every postponed outcome has it"  # noqa: S101
    history = (*outcome.earlier, *outcome.attempts)
    return new_entry(
        packed,
        subscription_ids,
        left_by=left_by,
        next_attempt=outcome.next_attempt,
        max_age_s=outcome.delivery.endpoint.retrying.max_age_s,
        reason=outcome.reason,
        now_ms=now_ms,
        attempts=len(history),
        history=history,
        order_key=order_key,
        background_attempt=outcome.background_attempt,
        revision=revision,
    )


def shortened(attempt: Attempt) -> Attempt:
    """Return the attempt with its response cut to KEPT_RESPONSE_BYTES. Only a response to a batch is longer before the cut."""
    return (
        attempt
        if len(attempt.response) <= KEPT_RESPONSE_BYTES
        else attempt._replace(response=attempt.response[:KEPT_RESPONSE_BYTES])
    )


def encoded(message: Postponed | Report | Lease) -> bytes:
    """Return a message as bytes, with the version in front."""
    return versioning.versioned(VERSION, _encoder.encode(message))


def message(written: bytes) -> Postponed | Report:
    """Return the message in a record of the retries topic.

    Raise StateUnreadable if the record is empty or has another format version than VERSION. Raise msgspec.MsgspecError or
    UnicodeDecodeError if the record is no message.
    """
    return _messages.decode(versioning.read(written, VERSION, "a record of the retries topic"))


def lease(written: bytes) -> Lease:
    """Return the lease in the bytes that a shard wrote for a worker.

    Raise StateUnreadable if the bytes are empty or have another format version than VERSION. Raise msgspec.MsgspecError or
    UnicodeDecodeError if the bytes are no lease.
    """
    return _leases.decode(versioning.read(written, VERSION, "a lease of the retry lane"))
