"""Track the health of endpoints and decide on operational events (docs/operational-events.md). Pure.

Runs in `fanout archive`. `apply` adds one observation about an endpoint, a Signal, to the stored health of that endpoint.
`apply` also returns the operational event that follows, if any. For one endpoint, each kind of event follows at most once in
`Policy.quiet_s` seconds. The exception is `recovered`, which follows at most once after each `failing`.
"""

from __future__ import annotations

import datetime as dt
import enum
import hashlib
from typing import Any, NamedTuple

import msgspec

MIN_FAILURES = 5
"""Consecutive failed attempts before an endpoint counts as failing. The same number opens a worker's circuit breaker, where a
timeout counts as three failures. Fewer failures say little about an endpoint that gets one event a day."""


class EventKind(enum.StrEnum):
    """The types of operational events. A closed set."""

    FAILING = "fanout.endpoint.failing"
    RECOVERED = "fanout.endpoint.recovered"
    DISABLED = "fanout.endpoint.disabled"
    BACKLOG_GROWING = "fanout.backlog.growing"
    DEAD_LETTERS_WAITING = "fanout.dead-letters.waiting"
    KEY_EXPIRING = "fanout.api-key.expiring"
    """An API key expires soon. `key_expiry.record` makes this event."""
    QUOTA_REACHED = "fanout.quota.reached"
    """A customer or a tenant has reached a quota. `quotas.record` makes this event."""


class SignalKind(enum.Enum):
    """The observation that a Signal reports about an endpoint."""

    ACCEPTED = enum.auto()
    """The endpoint accepted an attempt."""
    FAILED = enum.auto()
    """An attempt failed, and not by a fault of the platform's machine."""
    POSTPONED = enum.auto()
    """Deliveries were postponed to the retry lane before any of their attempts had a result."""
    DEAD_LETTER = enum.auto()
    DISABLED = enum.auto()
    WOKEN = enum.auto()
    """The time that `EndpointHealth.wake_at` returned has come. No record causes this signal."""


class Signal(NamedTuple):
    """One observation about an endpoint. Signals of one endpoint and kind come in the order of the records that cause them."""

    endpoint_id: str
    customer_id: str
    kind: SignalKind
    at: dt.datetime
    """When the record was written, so that an archive that was stopped makes the same decisions later. For DISABLED and WOKEN:
    now."""
    times: int = 1
    """Number of consecutive equal observations that this signal stands for, such as five failed attempts."""
    reason: str | None = None
    """For FAILED the error class. Otherwise why the deliveries were postponed or given up, or the endpoint was disabled."""
    since: dt.datetime | None = None
    """When the endpoint was disabled, for DISABLED."""


class Policy(NamedTuple):
    """The limits for operational events (delivery.config.service_settings.OperationsSettings)."""

    failing_after_s: float
    """Seconds of failures after which an endpoint is reported as failing."""
    backlog_events: int
    """Postponed deliveries within `quiet_s` at which an endpoint's backlog is reported."""
    quiet_s: float
    """Minimum seconds between two events of one kind about one endpoint or quota."""
    key_expiring_days: int = 14


class EndpointHealth(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The stored health of one endpoint, as JSON. Earlier and later versions of the platform read the JSON.

    So each field needs a default, for JSON without the field. Fields in the JSON that this version does not know are ignored.
    """

    failures: int = 0
    """Failed attempts since the endpoint last accepted one, or was disabled."""
    failing_since: dt.datetime | None = None
    """When the first of the attempts that `failures` counts was recorded."""
    is_failing: bool = False
    """True after a `failing` event, until a `recovered` or a `disabled` event."""
    failing_reported_at: dt.datetime | None = msgspec.field(default=None, name="failing_told_at")
    disabled_at: dt.datetime | None = None
    """When the endpoint was disabled, according to its last `disabled` event."""
    disabled_reported_at: dt.datetime | None = msgspec.field(default=None, name="disabled_told_at")
    postponed: int = 0
    """Deliveries postponed since `postponed_since`, the beginning of the present period of `quiet_s` seconds."""
    postponed_since: dt.datetime | None = None
    backlog_reported_at: dt.datetime | None = msgspec.field(default=None, name="backlog_told_at")
    letters: int = 0
    """Dead letters that no event has reported yet."""
    letters_since: dt.datetime | None = None
    letters_reported_at: dt.datetime | None = msgspec.field(default=None, name="letters_told_at")
    letter_reason: str | None = None

    def wake_at(self, policy: Policy) -> dt.datetime | None:
        """Return when the next report of dead letters is due, even if no further dead letter comes.

        None: every dead letter has been reported.
        """
        if not self.letters or self.letters_reported_at is None:
            return None
        return self.letters_reported_at + dt.timedelta(seconds=policy.quiet_s)


class OperationalEvent(NamedTuple):
    """An operational event about an endpoint, an API key or a quota."""

    kind: EventKind
    subject_id: str
    """The endpoint, or the API key, that the event is about; or the customer or tenant that has reached a quota."""
    customer_id: str | None
    """The customer that may receive the event. None: operators only."""
    at: dt.datetime
    data: dict[str, Any]
    about: str = ""
    """The quota of a QUOTA_REACHED event, else empty. The event id contains it, because a customer can reach two quotas at
    once."""

    @property
    def event_id(self) -> str:
        """Return the id: a digest of kind, subject, time and `about`. Events with the same four values have the same id."""
        about = f"{self.subject_id}\0{self.kind}\0{self.at.astimezone(dt.UTC).isoformat()}"
        about += f"\0{self.about}" if self.about else ""
        return "op_" + hashlib.blake2b(about.encode(), digest_size=16).hexdigest()


def apply(known: EndpointHealth, signal: Signal, policy: Policy) -> tuple[EndpointHealth, OperationalEvent | None]:
    """Return the health of an endpoint after a signal, and the operational event that follows, if any."""
    match signal.kind:
        case SignalKind.ACCEPTED:
            return _accepted(known, signal)
        case SignalKind.FAILED:
            return _failed(known, signal, policy)
        case SignalKind.POSTPONED:
            return _postponed(known, signal, policy)
        case SignalKind.DISABLED:
            return _disabled(known, signal, policy)
        case SignalKind.DEAD_LETTER:
            return _given_up(known, signal, signal.times, policy)
        case SignalKind.WOKEN:
            return _given_up(known, signal, 0, policy)


def _accepted(known: EndpointHealth, signal: Signal) -> tuple[EndpointHealth, OperationalEvent | None]:
    after = msgspec.structs.replace(known, failures=0, failing_since=None, is_failing=False)
    if not known.is_failing or known.failing_since is None:
        return after, None
    return after, _operational_event(EventKind.RECOVERED, signal, known.failing_since)


def _failed(known: EndpointHealth, signal: Signal, policy: Policy) -> tuple[EndpointHealth, OperationalEvent | None]:
    since = known.failing_since or signal.at
    after = msgspec.structs.replace(known, failures=known.failures + signal.times, failing_since=since)
    if (
        known.is_failing
        or after.failures < MIN_FAILURES
        or (signal.at - since).total_seconds() < policy.failing_after_s
        or not _is_over(known.failing_reported_at, signal.at, policy)
    ):
        return after, None
    after = msgspec.structs.replace(after, is_failing=True, failing_reported_at=signal.at)
    return after, _operational_event(EventKind.FAILING, signal, since, failures=after.failures, error_class=signal.reason)


def _postponed(known: EndpointHealth, signal: Signal, policy: Policy) -> tuple[EndpointHealth, OperationalEvent | None]:
    """Count postponed deliveries in periods of `quiet_s` seconds, and report a period with `backlog_events` or more.

    Reports about one endpoint are at least `quiet_s` seconds apart.
    """
    since, before = known.postponed_since, known.postponed
    if since is None or _is_over(since, signal.at, policy):
        since, before = signal.at, 0
    after = msgspec.structs.replace(known, postponed=before + signal.times, postponed_since=since)
    if after.postponed < policy.backlog_events or not _is_over(known.backlog_reported_at, signal.at, policy):
        return after, None
    after = msgspec.structs.replace(after, backlog_reported_at=signal.at)
    return after, _operational_event(EventKind.BACKLOG_GROWING, signal, since, events=after.postponed, reason=signal.reason)


def _disabled(known: EndpointHealth, signal: Signal, policy: Policy) -> tuple[EndpointHealth, OperationalEvent | None]:
    """Report a disabled endpoint, and reset its failures, so that earlier failures do not count once it is enabled again.

    1. The `disabled` event for the signal's `since` was made already: nothing changes.
    2. Another `disabled` event of the endpoint was made less than `quiet_s` seconds ago: no event follows yet.
       `outbox.record_due` repeats the signal until the event is made, or has been due for `outbox.LATE_S` seconds. An endpoint
       reported as failing keeps its failures until then, because a `recovered` or `disabled` event must follow each `failing`
       event. The failures of other endpoints are reset at once.
    3. Otherwise the `disabled` event follows, and the failures are reset.
    """
    since = signal.since or signal.at
    if known.disabled_at == since:
        return known, None
    may_report = _is_over(known.disabled_reported_at, signal.at, policy)
    if known.is_failing and not may_report:
        return known, None
    after = msgspec.structs.replace(known, failures=0, failing_since=None, is_failing=False)
    if not may_report:
        return after, None
    after = msgspec.structs.replace(after, disabled_at=since, disabled_reported_at=signal.at)
    return after, _operational_event(EventKind.DISABLED, signal, since, reason=signal.reason)


def _given_up(
    known: EndpointHealth, signal: Signal, count: int, policy: Policy
) -> tuple[EndpointHealth, OperationalEvent | None]:
    """Report the first dead letter at once, and the dead letters of the following `quiet_s` seconds together.

    `count` is the number of dead letters that the signal adds: 0 for WOKEN.
    """
    letters, since, reason = known.letters + count, known.letters_since or signal.at, signal.reason or known.letter_reason
    if not letters:
        return known, None
    if not _is_over(known.letters_reported_at, signal.at, policy):
        return msgspec.structs.replace(known, letters=letters, letters_since=since, letter_reason=reason), None
    after = msgspec.structs.replace(known, letters=0, letters_since=None, letters_reported_at=signal.at, letter_reason=None)
    return after, _operational_event(EventKind.DEAD_LETTERS_WAITING, signal, since, letters=letters, reason=reason)


def _is_over(reported_at: dt.datetime | None, at: dt.datetime, policy: Policy) -> bool:
    return reported_at is None or (at - reported_at).total_seconds() >= policy.quiet_s


def _operational_event(kind: EventKind, signal: Signal, since: dt.datetime, **more: Any) -> OperationalEvent:
    data = {"endpoint_id": signal.endpoint_id, "since": rfc3339(since)} | more
    return OperationalEvent(kind, signal.endpoint_id, signal.customer_id, signal.at, data)


def rfc3339(moment: dt.datetime) -> str:
    """Return a moment as RFC 3339 text in UTC, with milliseconds."""
    return moment.astimezone(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
