"""Select dead letters by their fields. Pure, except `from_options`, which reads the clock.

Runs in `fanout` commands, in `fanout archive` and in the tests.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from delivery.webhooks.results.dead_letter_records import DeadLetter
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
        """Return the selection that command-line options name. Raise SettingsError if `since` or `until` is not a time."""
        now_ms = round(time.time() * 1000)
        return cls(
            endpoint_id=endpoint_id,
            event_type=event_type,
            tenant_id=tenant_id,
            reason=reason,
            since_ms=None if since is None else times.moment_ms("--since", since, now_ms=now_ms),
            until_ms=None if until is None else times.moment_ms("--until", until, now_ms=now_ms),
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
            and (self.since_ms is None or letter.dead_lettered_at_ms >= self.since_ms)
            and (self.until_ms is None or letter.dead_lettered_at_ms < self.until_ms)
            and (self.event_type is None or matching.takes_type(self.event_type, letter.event_type))
        )
