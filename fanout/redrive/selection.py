"""Select dead letters, and rejected records, by their fields. Pure, except both methods `from_options`, which read the clock.

Runs in `fanout` commands, in `fanout archive` and in the tests.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from delivery.webhooks.results.dead_letter_records import DeadLetter
from delivery.webhooks.results.rejected_records import RejectedRecord
from delivery.webhooks.routing import matching
from fanout.terminal import times


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Conditions that a dead letter must meet. A field that is None is no condition."""

    endpoint_id: str | None = None
    event_type: str | None = None
    """An exact type, or a prefix wildcard such as `order.*`."""
    tenant_id: str | None = None
    reason: str | None = None
    """The reason for which the delivery was given up, such as `timeout`."""
    since_ms: int | None = None
    """Only deliveries that were given up at or after this time, in ms since the epoch."""
    until_ms: int | None = None
    """Only deliveries that were given up before this time, in ms since the epoch."""

    @classmethod
    def from_options(
        cls,
        endpoint_id: str | None,
        event_type: str | None,
        tenant_id: str | None,
        reason: str | None,
        *,
        since: str | None,
        until: str | None,
    ) -> Selection:
        """Return the selection that command-line options name.

        Raise SettingsError if `since` or `until` is neither a time nor an age such as `24h`.
        """
        since_ms, until_ms = _range_ms(since, until)
        return cls(
            endpoint_id=endpoint_id,
            event_type=event_type,
            tenant_id=tenant_id,
            reason=reason,
            since_ms=since_ms,
            until_ms=until_ms,
        )

    @property
    def is_everything(self) -> bool:
        """Return True if there is no condition."""
        return self == Selection()

    def matches(self, letter: DeadLetter) -> bool:
        """Return True if a dead letter meets all conditions."""
        return (
            self.endpoint_id in {None, letter.endpoint_id}
            and self.tenant_id in {None, letter.tenant_id}
            and self.reason in {None, letter.reason}
            and _is_within(letter.dead_lettered_at_ms, self.since_ms, self.until_ms)
            and (self.event_type is None or matching.takes_type(self.event_type, letter.event_type))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedSelection:
    """Conditions that a rejected record must meet. A field that is None is no condition."""

    reason: str | None = None
    """The reason for which the record was rejected, such as `unknown_tenant`."""
    topic: str | None = None
    """The event topic of the record."""
    since_ms: int | None = None
    """Only records that were rejected at or after this time, in ms since the epoch."""
    until_ms: int | None = None
    """Only records that were rejected before this time, in ms since the epoch."""

    @classmethod
    def from_options(cls, reason: str | None, topic: str | None, *, since: str | None, until: str | None) -> RejectedSelection:
        """Return the selection that command-line options name.

        Raise SettingsError if `since` or `until` is neither a time nor an age such as `24h`.
        """
        since_ms, until_ms = _range_ms(since, until)
        return cls(reason=reason, topic=topic, since_ms=since_ms, until_ms=until_ms)

    def matches(self, record: RejectedRecord, rejected_at_ms: int) -> bool:
        """Return True if a record that was rejected at this time, in ms since the epoch, meets all conditions."""
        return (
            self.reason in {None, record.reason}
            and self.topic in {None, record.topic}
            and _is_within(rejected_at_ms, self.since_ms, self.until_ms)
        )


def _range_ms(since: str | None, until: str | None) -> tuple[int | None, int | None]:
    now_ms = round(time.time() * 1000)
    return (
        None if since is None else times.moment_ms("--since", since, now_ms=now_ms),
        None if until is None else times.moment_ms("--until", until, now_ms=now_ms),
    )


def _is_within(at_ms: int, since_ms: int | None, until_ms: int | None) -> bool:
    return (since_ms is None or at_ms >= since_ms) and (until_ms is None or at_ms < until_ms)
