"""The types of entries in a record of the attempts topic, the delivery log. `log_records` writes and reads the entries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

Offsets: TypeAlias = dict[str, dict[str, dict[str, list[int]]]]
"""Offsets by subscription, topic and partition. A batch has one entry with such offsets. An entry for each event would cost
more than sending the events."""


class Due(NamedTuple):
    """Identity of a delivery: its event's position in Kafka, and its subscription.

    All lanes write the same identity, also when the delivery is repeated.
    """

    topic: str
    partition: int
    offset: int
    subscription_id: str


class DeliveryEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="kind"):
    """Fields of every entry about a single delivery."""

    webhook_id: str
    """The `webhook-id` that the event has when it is sent alone."""
    event_id: str
    """The event's id. If its producer gave none: `topic:partition:offset`."""
    event_type: str
    """The event's type."""
    tenant_id: str
    """Tenant at which the event happened."""
    subscription_id: str
    """Subscription by which the event is due."""
    topic: str
    """Topic of the event."""
    partition: int
    """Partition of the event."""
    offset: int
    """Offset of the event."""
    appended_at_ms: int
    """When Kafka appended the event."""

    @property
    def count(self) -> int:
        """Return the number of deliveries: one."""
        return 1

    def due(self) -> Iterator[Due]:
        """Yield the identity of the delivery."""
        yield Due(self.topic, self.partition, self.offset, self.subscription_id)


class ResultEntry(DeliveryEntry, frozen=True, kw_only=True, gc=False, tag_field="kind"):
    """Fields of every entry about the result of a single delivery."""

    replay: str | UnsetType | None = UNSET
    """Replay that asked for the delivery. Left out where the delivery was due. Since 2026-11-21."""

    def accepted(self) -> Iterator[Due]:
        """Yield the identity of the delivery. Called only if the endpoint accepted the attempt."""
        return self.due()


class AttemptEntry(ResultEntry, frozen=True, kw_only=True, gc=False, tag="attempt"):
    """A request with one event, and its result."""

    attempt: int
    """Number of the attempt, from 1."""
    started_at_ms: int
    """When the attempt started."""
    duration_ms: float
    """Duration of the attempt, rounded to a tenth."""
    status: int | None
    """HTTP status of the response. Null: no response came."""
    error_class: str | None
    """Error class of the failure. Null: the endpoint accepted the delivery."""
    detail: str = ""
    """The error's text for a person, without secrets and without the full URL."""
    retry_after_s: float | None = None
    """Wait that the response to a failed attempt asked for, up to a cap. Null: it asked for none. Since 2026-11-21."""
    response_headers: dict[str, str] | UnsetType = UNSET
    """Headers of the response, by name, from a fixed list without credentials. Kept for failed attempts, and with
    `delivery.logged_responses = "all"` for accepted attempts too. Left out where there are none. Since 2026-11-25."""
    response: str | UnsetType = UNSET
    """Beginning of the response's body, at most `delivery.logged_response_bytes`, with `***` in place of credentials. Kept for
    the same attempts as `response_headers`. Left out where there is none. Since 2026-11-25."""


class SkippedEntry(ResultEntry, frozen=True, kw_only=True, gc=False, tag="skipped"):
    """A delivery that ends without a further attempt, because it is skipped."""

    reason: str | None
    """Reason: a SkipReason."""


class PostponedEntry(ResultEntry, frozen=True, kw_only=True, gc=False, tag="postponed"):
    """A delivery that was postponed to the retry lane before any of its attempts had a result."""

    reason: str | None
    """Reason: a word of `delivery.webhooks.policy.retry_reasons`."""


class DeadLetteredEntry(ResultEntry, frozen=True, kw_only=True, gc=False, tag="dead_lettered"):
    """A delivery that was given up without an attempt in this lane or lease. Its dead letter has the earlier attempts."""

    reason: str | None
    """Reason: a word of `policy.retry_reasons`, such as `expired`, or `unforeseen` for a fault of the platform in making the
    request."""


class RedrivenEntry(DeliveryEntry, frozen=True, kw_only=True, gc=False, tag="redriven"):
    """A note that a redrive enqueued a dead letter in the retry lane.

    The record of the retries topic that enqueued the dead letter has the note as well, in a header.
    """

    dead_lettered_at_ms: int
    """`dead_lettered_at_ms` of the dead letter. All dead letters of the delivery up to this time count as redriven."""
    redriven_at_ms: int
    """When the dead letter was enqueued."""
    replay: str | None = None
    """Id of the replay that asked for the delivery that was dead-lettered. Null: that delivery was due. Since 2026-11-21."""


class BatchEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="kind"):
    """Fields of every entry about a batch."""

    webhook_id: str
    """The `webhook-id` of the batch. Empty: the batch could not be made."""
    left_by: str
    """The reason why the events became a batch: a LeaveReason."""
    count: int
    """Number of events."""
    oldest_appended_at_ms: int
    """When Kafka appended the oldest event."""
    offsets: Offsets
    """Offsets of the events, by subscription, topic and partition."""
    rejected: Offsets = {}
    """Offsets of the events that the response rejected, in the form of `offsets`. Each has a dead letter. Since 2026-11-21."""
    replay: str | UnsetType | None = UNSET
    """Replay that asked for the batch. Left out where the batch was due. Since 2026-11-21."""

    def due(self) -> Iterator[Due]:
        """Yield the identity of the delivery of each event."""
        return _deliveries(self.offsets)

    def accepted(self) -> Iterator[Due]:
        """Yield the identities of the deliveries that the response did not reject.

        Called only if the endpoint accepted the attempt.
        """
        if not self.rejected:
            return self.due()
        rejected = set(_deliveries(self.rejected))
        return (due for due in self.due() if due not in rejected)


class BatchAttemptEntry(BatchEntry, frozen=True, kw_only=True, gc=False, tag="batch_attempt"):
    """A request with a batch, and its result."""

    attempt: int
    """Number of the attempt, from 1."""
    started_at_ms: int
    """When the attempt started."""
    duration_ms: float
    """Duration of the attempt, rounded to a tenth."""
    status: int | None
    """HTTP status of the response. Null: no response came."""
    error_class: str | None
    """Error class of the failure. Null: the endpoint accepted the batch, except the events in `rejected`."""
    detail: str = ""
    """The error's text for a person, without secrets and without the full URL."""
    retry_after_s: float | None = None
    """Wait that the response to a failed attempt asked for, up to a cap. Null: it asked for none. Since 2026-11-21."""
    response_headers: dict[str, str] | UnsetType = UNSET
    """Headers of the response, by name, from a fixed list without credentials. Kept for failed attempts, and with
    `delivery.logged_responses = "all"` for accepted attempts too. Left out where there are none. Since 2026-11-25."""
    response: str | UnsetType = UNSET
    """Beginning of the response's body, at most `delivery.logged_response_bytes`, with `***` in place of credentials. Kept for
    the same attempts as `response_headers`. Left out where there is none. Since 2026-11-25."""


class BatchSkippedEntry(BatchEntry, frozen=True, kw_only=True, gc=False, tag="batch_skipped"):
    """A batch that ends without a further attempt, because it is skipped."""

    reason: str | None
    """Reason: a SkipReason."""


class BatchPostponedEntry(BatchEntry, frozen=True, kw_only=True, gc=False, tag="batch_postponed"):
    """A batch that was postponed to the retry lane before any of its attempts had a result."""

    reason: str | None
    """Reason: a word of `delivery.webhooks.policy.retry_reasons`."""


class BatchDeadLetteredEntry(BatchEntry, frozen=True, kw_only=True, gc=False, tag="batch_dead_lettered"):
    """A batch that was given up without an attempt in this lane or lease. Each of its events has a dead letter."""

    reason: str | None
    """The reason: a word of `policy.retry_reasons`, or `unforeseen` for a fault of the platform in making the batch."""


Attempted: TypeAlias = AttemptEntry | BatchAttemptEntry
Unattempted: TypeAlias = (
    SkippedEntry | PostponedEntry | DeadLetteredEntry | BatchSkippedEntry | BatchPostponedEntry | BatchDeadLetteredEntry
)
Entry: TypeAlias = Attempted | Unattempted | RedrivenEntry
ATTEMPTED = (AttemptEntry, BatchAttemptEntry)
SKIPPED = (SkippedEntry, BatchSkippedEntry)
POSTPONED = (PostponedEntry, BatchPostponedEntry)
DEAD_LETTERED = (DeadLetteredEntry, BatchDeadLetteredEntry)


def _deliveries(offsets: Offsets) -> Iterator[Due]:
    for subscription_id, by_topic in offsets.items():
        for topic, by_partition in by_topic.items():
            for partition, of_partition in by_partition.items():
                for offset in of_partition:
                    yield Due(topic, int(partition), offset, subscription_id)
