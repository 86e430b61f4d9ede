"""Decide what customers are told of their endpoints, from what the topics and the registry say of them. Pure.

Runs in `fanout archive`. A condition is what is remembered of one endpoint; `take` folds what is seen into it, and returns the
operational event that follows, if one does (docs/operational-events.md). Each kind comes at most once in `quiet_s` of an
endpoint.
"""

from __future__ import annotations

import datetime as dt
import enum
import hashlib
from typing import Any, NamedTuple

import msgspec

MIN_FAILURES = 5
"""As many as open a worker's circuit. Fewer say little of an endpoint that has an event a day."""


class Kind(enum.StrEnum):
    """The types of operational events. A closed set."""

    FAILING = "fanout.endpoint.failing"
    RECOVERED = "fanout.endpoint.recovered"
    DISABLED = "fanout.endpoint.disabled"
    BACKLOG_GROWING = "fanout.backlog.growing"
    DEAD_LETTERS_WAITING = "fanout.dead-letters.waiting"


class Sign(enum.Enum):
    """What is seen of an endpoint."""

    ACCEPTED = enum.auto()
    FAILED = enum.auto()
    POSTPONED = enum.auto()
    DEAD_LETTER = enum.auto()
    DISABLED = enum.auto()
    WOKEN = enum.auto()
    """The time has come that the condition named."""


class Seen(NamedTuple):
    """A sign, so many times in a row. Of those of one endpoint and sign the order is that of their topic."""

    endpoint_id: str
    customer_id: str
    sign: Sign
    at: dt.datetime
    """When its record was written, so that an archive that has stood still tells the same; of DISABLED and WOKEN, now."""
    times: int = 1
    reason: str | None = None
    since: dt.datetime | None = None
    """Of DISABLED: when it was."""


class Policy(NamedTuple):
    """When there is something to tell (delivery.config.service_settings.Operations)."""

    failing_after_s: float
    backlog_events: int
    quiet_s: float


class Condition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is remembered of an endpoint. Kept as JSON: a new field has a default, and one that is gone is passed over."""

    failures: int = 0
    """In a row."""
    failing_since: dt.datetime | None = None
    is_failing: bool = False
    """Whether that was told, and nothing that ends it since."""
    failing_told_at: dt.datetime | None = None
    disabled_at: dt.datetime | None = None
    """What was told last."""
    disabled_told_at: dt.datetime | None = None
    postponed: int = 0
    postponed_since: dt.datetime | None = None
    backlog_told_at: dt.datetime | None = None
    letters: int = 0
    """Not told yet."""
    letters_since: dt.datetime | None = None
    letters_told_at: dt.datetime | None = None
    letter_reason: str | None = None

    def wake_at(self, policy: Policy) -> dt.datetime | None:
        """Return when there is something to tell though nothing more is seen."""
        if not self.letters or self.letters_told_at is None:
            return None
        return self.letters_told_at + dt.timedelta(seconds=policy.quiet_s)


class Told(NamedTuple):
    """An operational event."""

    kind: Kind
    endpoint_id: str
    customer_id: str
    at: dt.datetime
    data: dict[str, Any]

    @property
    def event_id(self) -> str:
        """Return its id: the same however often it is made. No two of an endpoint and kind have the same moment."""
        about = f"{self.endpoint_id}\0{self.kind}\0{self.at.astimezone(dt.UTC).isoformat()}"
        return "op_" + hashlib.blake2b(about.encode(), digest_size=16).hexdigest()


def take(known: Condition, seen: Seen, policy: Policy) -> tuple[Condition, Told | None]:
    """Return what is known of an endpoint after `seen`, and what is to be told."""
    match seen.sign:
        case Sign.ACCEPTED:
            return _accepted(known, seen)
        case Sign.FAILED:
            return _failed(known, seen, policy)
        case Sign.POSTPONED:
            return _postponed(known, seen, policy)
        case Sign.DISABLED:
            return _disabled(known, seen, policy)
        case Sign.DEAD_LETTER:
            return _given_up(known, seen, seen.times, policy)
        case Sign.WOKEN:
            return _given_up(known, seen, 0, policy)


def _accepted(known: Condition, seen: Seen) -> tuple[Condition, Told | None]:
    after = msgspec.structs.replace(known, failures=0, failing_since=None, is_failing=False)
    if not known.is_failing or known.failing_since is None:
        return after, None
    return after, _told(Kind.RECOVERED, seen, known.failing_since)


def _failed(known: Condition, seen: Seen, policy: Policy) -> tuple[Condition, Told | None]:
    since = known.failing_since or seen.at
    after = msgspec.structs.replace(known, failures=known.failures + seen.times, failing_since=since)
    if (
        known.is_failing
        or after.failures < MIN_FAILURES
        or (seen.at - since).total_seconds() < policy.failing_after_s
        or not _is_over(known.failing_told_at, seen.at, policy)
    ):
        return after, None
    after = msgspec.structs.replace(after, is_failing=True, failing_told_at=seen.at)
    return after, _told(Kind.FAILING, seen, since, failures=after.failures, error_class=seen.reason)


def _postponed(known: Condition, seen: Seen, policy: Policy) -> tuple[Condition, Told | None]:
    """Count postponed deliveries in windows of `quiet_s`. Report a full one, `quiet_s` or more after the last report."""
    since, before = known.postponed_since, known.postponed
    if since is None or _is_over(since, seen.at, policy):
        since, before = seen.at, 0
    after = msgspec.structs.replace(known, postponed=before + seen.times, postponed_since=since)
    if after.postponed < policy.backlog_events or not _is_over(known.backlog_told_at, seen.at, policy):
        return after, None
    after = msgspec.structs.replace(after, backlog_told_at=seen.at)
    return after, _told(Kind.BACKLOG_GROWING, seen, since, events=after.postponed, reason=seen.reason)


def _disabled(known: Condition, seen: Seen, policy: Policy) -> tuple[Condition, Told | None]:
    """End what was told to be failing: whoever enables the endpoint again begins anew."""
    since = seen.since or seen.at
    if known.disabled_at == since or not _is_over(known.disabled_told_at, seen.at, policy):
        return known, None
    after = msgspec.structs.replace(
        known, disabled_at=since, disabled_told_at=seen.at, failures=0, failing_since=None, is_failing=False
    )
    return after, _told(Kind.DISABLED, seen, since, reason=seen.reason)


def _given_up(known: Condition, seen: Seen, count: int, policy: Policy) -> tuple[Condition, Told | None]:
    """Tell the first letter at once, and what comes in the quiet time after it."""
    letters, since, reason = known.letters + count, known.letters_since or seen.at, seen.reason or known.letter_reason
    if not letters:
        return known, None
    if not _is_over(known.letters_told_at, seen.at, policy):
        return msgspec.structs.replace(known, letters=letters, letters_since=since, letter_reason=reason), None
    after = msgspec.structs.replace(known, letters=0, letters_since=None, letters_told_at=seen.at, letter_reason=None)
    return after, _told(Kind.DEAD_LETTERS_WAITING, seen, since, letters=letters, reason=reason)


def _is_over(told_at: dt.datetime | None, at: dt.datetime, policy: Policy) -> bool:
    return told_at is None or (at - told_at).total_seconds() >= policy.quiet_s


def _told(kind: Kind, seen: Seen, since: dt.datetime, **more: Any) -> Told:
    data = {"endpoint_id": seen.endpoint_id, "since": rfc3339(since)} | more
    return Told(kind, seen.endpoint_id, seen.customer_id, seen.at, data)


def rfc3339(moment: dt.datetime) -> str:
    """Return a moment as events have it."""
    return moment.astimezone(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
