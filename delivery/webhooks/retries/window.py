"""Decide how many requests of the retry lane may be in flight to an endpoint, and how long it gets no request (back-off).

Runs in the executors. Pure: reports and `now_ms` in. The window is the number of requests that may be in flight, as in TCP.

A failing endpoint gets one request at a time, the probe, at growing intervals. An endpoint that answers again gets two, four,
eight requests (multiplicative increase). So the backlog does not overload the endpoint a second time.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from delivery.webhooks.policy import error_classes, retry_reasons
from delivery.webhooks.retries import health_hints, retry_messages
from delivery.webhooks.scheduling import circuit_breaker

INITIAL_WINDOW = 8
"""Requests that may be in flight to an endpoint of which the shard remembers no report."""
RECOVERED_WINDOW = 64
"""Size of the window from which on an endpoint counts as recovered from a back-off. If `max_lease_entries` is smaller, the
endpoint counts as recovered from that size on. Before it has recovered, the endpoint is suppressed while entries without an
order key wait."""
NEVER_MS = 2**62
"""A time that never comes, in ms since the epoch."""
KNOWLEDGE_MS = 60_000
"""Milliseconds for which the retry lane trusts its own knowledge of an endpoint more than deferrals by other lanes. Until then,
deferrals start no back-off, because their reasons may be older than a recovery of the endpoint. The time begins with the report
of a lease, or with a back-off after a deferral, but not before `Window.backoff_until_ms`. It ends at `Window.known_until_ms`.
The window of an endpoint without entries is kept at least until then."""
RECENT_FAILURE_MS = 60_000
"""Milliseconds after an endpoint's last failure in which the shard may report the endpoint as failing."""
BLOCKED = frozenset({retry_reasons.ENDPOINT_PAUSED, retry_reasons.ENDPOINT_DISABLED, retry_reasons.ENDPOINT_QUARANTINED})
"""Reasons for which no lane sends requests to an endpoint. Such a reason says nothing about the endpoint's health."""
BACKOFF_REASONS = frozenset({retry_reasons.CIRCUIT_OPEN, retry_reasons.LANE_DEADLINE, error_classes.GONE}) | BLOCKED
"""Reasons for which the retry lane backs off from an endpoint when another lane defers a delivery. There is no such
back-off before `Window.known_until_ms`."""
NOT_ACCEPTED = circuit_breaker.UNHEALTHY | circuit_breaker.REFUSED
"""Error classes of attempts that the endpoint did not accept, whether it is healthy or not."""

MAX_SILENCE = 0.5
"""Longest time between two failures through which an endpoint counts as failing, as a share of `disable_after_s`. After a
longer silence, such as a stop of the job, the failing time begins again at the next failure, because nothing was sent
meanwhile. The bound is never shorter than the longest probe interval plus a lease timeout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPolicy:
    """The settings of the area `retry` that a shard of the retry lane needs, and the lease timeout."""

    probe_interval_s: float = 5.0
    max_probe_interval_s: float = 60.0
    max_lease_entries: int = 256
    """Most requests in flight to an endpoint (its largest window), and most entries in one lease. Setting `retry.max_turn`."""
    max_pending: int = 200_000
    """Maximum of events of one endpoint that may wait in the retry lane. See `admits`."""
    disable_after_s: float = 432_000.0
    lease_timeout_s: float = 120.0
    """Seconds until a lease without a report expires, counted from the first decision after the lease. The entries of the lease
    are then leased again. A worker reports earlier, and requeues the entries that it did not attempt. If the shard is behind in
    the retries topic, the lease expires later, by the time that the shard is behind."""

    def admits(self, reason: str, events: int) -> bool:
        """Return True if an entry with this `reason` may wait, and `events` events of its endpoint then wait with it.

        1. Redriven entries may take half of `max_pending`, so that a large redrive leaves room for live deliveries.
        2. All other entries may take `max_pending`. Replays have a bound of their own (`archive.replay_max_pending`).
        """
        return events <= ((self.max_pending + 1) // 2 if reason == retry_reasons.REDRIVEN else self.max_pending)


class Window(msgspec.Struct, array_like=True, gc=False):
    """The health of one endpoint as the retry lane knows it, and how many requests may be in flight to the endpoint.

    Reports of leases, deferrals and health hints change the window.
    """

    size: int = INITIAL_WINDOW
    """Requests that may be in flight."""
    backoff_until_ms: int = 0
    """Time before which the retry lane begins no request to the endpoint."""
    backoffs: int = 0
    """Number of back-offs in a row."""
    has_recovered: bool = True
    """False from a back-off until `size` is RECOVERED_WINDOW, or `max_lease_entries` if that is smaller."""
    failing_since_ms: int | None = None
    """Time of the first failure after which the endpoint accepted no request in any lane. A silence longer than MAX_SILENCE
    starts the time again. None: no such failure, or the endpoint was paused, disabled or quarantined since."""
    failed_ms: int = 0
    """Time of the last failure in any lane."""
    known_until_ms: int = 0
    """Time before which deferrals by other lanes cause no back-off (KNOWLEDGE_MS)."""
    has_only_failed: bool = False
    """True if the last report had failures that count (`_forgiven`), and no answer. An answer is a response that accepts or
    refuses an entry. A report with neither answers nor failures that count changes nothing. False after a report that the
    endpoint is paused, disabled or quarantined."""
    accepted_ms: int = 0
    """Time of the last report or health hint which says that the endpoint has accepted a request, in any lane. 0: unknown."""
    forgiven_ms: int = 0
    """Time of the last report for which `_forgiven` left failures out of the count. 0: there was none."""

    def apply_deferral(self, reason: str, policy: ShardPolicy, now_ms: int, since_ms: int) -> None:
        """Apply the reason for which another lane deferred a delivery at `since_ms`.

        A failure in the other lane always counts for disabling the endpoint. A paused, disabled or quarantined endpoint is not
        failing: `failing_since_ms` becomes None. A reason in BACKOFF_REASONS causes a back-off, unless `known_until_ms` is in
        the future.
        """
        if reason in BLOCKED:
            self.failing_since_ms = None
        elif reason in NOT_ACCEPTED:
            self.record_failure(policy, min(since_ms, now_ms))
        if reason in BACKOFF_REASONS and now_ms >= self.known_until_ms:
            self._back_off(policy, now_ms)
            self._extend_knowledge(now_ms)

    def apply_health_hint(self, message: retry_messages.Postponed, policy: ShardPolicy, now_ms: int) -> None:
        """Apply the health hint of a message, if the message has one."""
        if message.accepts:
            self.record_acceptance(min(message.at_ms, now_ms))
        elif message.accepts is not None:
            self.record_failure(policy, min(message.at_ms, now_ms))

    def record_acceptance(self, at_ms: int) -> None:
        """Record that the endpoint has accepted a request before `at_ms`, in any lane. `at_ms` 0: the time is unknown."""
        self.failing_since_ms = None
        self.accepted_ms = max(self.accepted_ms, at_ms)

    def record_failure(self, policy: ShardPolicy, at_ms: int) -> None:
        """Record that the endpoint did not accept a request at `at_ms`, in any lane.

        If `failing_since_ms` is None, or if the silence since the last failure was longer than MAX_SILENCE allows,
        `failing_since_ms` becomes `at_ms`.
        """
        if self.failing_since_ms is None or at_ms - self.failed_ms > _max_silence_ms(policy):
            self.failing_since_ms = self.failed_ms = at_ms
        self.failed_ms = max(self.failed_ms, at_ms)

    def apply_report(self, report: retry_messages.Report, policy: ShardPolicy, now_ms: int) -> None:
        """Apply the result of a lease.

        1. The endpoint is paused, disabled or quarantined: back off. The endpoint's health is unknown.
        2. Only failures: the window halves once for each failure that counts. Failures of poison events (`Report.poison`) do
           not count if the endpoint has accepted a request since the last report whose poison failures did not count. If less
           than one request is left, or if the endpoint asks for fewer requests, back off and probe. If the lease was of one
           order key, the window only halves, and stays at 1 or more: failures of one key do not stop the other keys.
        3. At least one answer (a response that accepts or refuses), but more failures than answers, or the endpoint asks for
           fewer requests: the window halves, without a back-off.
        4. At least one answer otherwise, even if every answer refuses: the endpoint is alive. The window doubles, up to
           `max_lease_entries`.
        5. Neither answers nor failures that count: the window stays as it is.

        In each case no request begins before the longest `Retry-After` has passed. Until KNOWLEDGE_MS after the report, or
        after the end of a present wait (`backoff_until_ms`), no deferral by another lane causes a back-off. In cases 2 to 5,
        all failures and refusals (4xx, redirects) count for disabling the endpoint if no entry was accepted.
        """
        if report.blocked is not None:
            self.failing_since_ms, self.has_only_failed = None, False
            self._back_off(policy, now_ms)
        elif answers := report.delivered + report.refused:
            self.backoffs, self.has_only_failed = 0, False
            is_too_wide = report.failed > answers or _asks_for_fewer(report)
            self.size = max(1, self.size // 2) if is_too_wide else min(self.size * 2, policy.max_lease_entries)
            self.has_recovered = self.has_recovered or self.size >= min(RECOVERED_WINDOW, policy.max_lease_entries)
        elif counted := report.failed - self._forgiven(report, now_ms):
            self.has_only_failed = True
            size = self.size >> counted
            if report.order_key is None and (size < 1 or _asks_for_fewer(report)):
                self._back_off(policy, now_ms)
            else:
                self.size = max(1, size)
        if report.delivered:
            self.record_acceptance(min(report.at_ms or now_ms, now_ms))
        elif report.blocked is None and (report.failed or report.refused):
            self.record_failure(policy, min(report.at_ms or now_ms, now_ms))
        if report.retry_after_s is not None:
            self.backoff_until_ms = max(self.backoff_until_ms, now_ms + round(report.retry_after_s * 1000))
        self._extend_knowledge(now_ms)

    @property
    def suppressed_until_ms(self) -> int:
        """Return the time, in ms since the epoch, until which other lanes defer the endpoint's events to the retry lane.

        1. A time in the past: the endpoint is not suppressed.
        2. A later time: the endpoint is suppressed until this time.
        3. NEVER_MS: the endpoint is suppressed until it has recovered from a back-off.

        In cases 2 and 3 other lanes defer only while entries without an order key wait in the retry lane.
        """
        return self.backoff_until_ms if self.has_recovered else NEVER_MS

    @property
    def is_degraded(self) -> bool:
        """Return True if `has_only_failed`, or if the endpoint has not recovered from a back-off."""
        return self.has_only_failed or not self.has_recovered

    def is_failing(self, policy: ShardPolicy, now_ms: int) -> bool:
        """Return True if the endpoint has accepted nothing for so long that it is to be disabled, and failed recently.

        Each decision of the shard within RECENT_FAILURE_MS of the last failure reports the endpoint again, because the
        database may be unavailable. An endpoint that was enabled less than `disable_after_s` ago is not disabled
        (subscriptions_db.registration.endpoint_status).
        """
        if self.failing_since_ms is None or now_ms - self.failed_ms >= RECENT_FAILURE_MS:
            return False
        # The last hint of a fast lane may be older than the last acceptance, by up to this interval.
        enough_s = policy.disable_after_s + health_hints.report_interval_s(policy.disable_after_s)
        return self.failed_ms - self.failing_since_ms >= enough_s * 1000

    def kept_until_ms(self, policy: ShardPolicy) -> int:
        """Return the time, in ms since the epoch, until which the window of an endpoint without retry entries is kept.

        The window is kept until `known_until_ms`. A failing endpoint's window is also kept until MAX_SILENCE after the last
        failure, because another failure before this time continues the failing time (`failing_since_ms`).
        """
        if self.failing_since_ms is None:
            return self.known_until_ms
        return max(self.known_until_ms, self.failed_ms + _max_silence_ms(policy))

    def without_report(self) -> Window:
        """Return a new window with only the times of the first and the last failure, and of the last acceptance.

        Called after `known_until_ms` has passed, if the endpoint has no retry entries.
        """
        return Window(failing_since_ms=self.failing_since_ms, failed_ms=self.failed_ms, accepted_ms=self.accepted_ms)

    def _forgiven(self, report: retry_messages.Report, now_ms: int) -> int:
        """Return how many failures of a report with only failures do not count.

        After each acceptance by the endpoint, the poison failures (`Report.poison`) of the first report that has some do not
        count. Those of later reports count, until the next acceptance. If they never counted, then in an outage right after an
        acceptance each waiting entry that had failed before would be attempted without a back-off.
        """
        if not report.poison or self.accepted_ms <= self.forgiven_ms:
            return 0
        self.forgiven_ms = min(report.at_ms or now_ms, now_ms)
        return report.poison

    def _back_off(self, policy: ShardPolicy, now_ms: int) -> None:
        wait_s = min(policy.probe_interval_s * 2.0 ** min(self.backoffs, 32), policy.max_probe_interval_s)
        self.backoff_until_ms = max(self.backoff_until_ms, now_ms + round(wait_s * 1000))
        self.backoffs += 1
        self.size = 1
        self.has_recovered = False

    def _extend_knowledge(self, now_ms: int) -> None:
        self.known_until_ms = max(self.backoff_until_ms, now_ms) + KNOWLEDGE_MS


def _asks_for_fewer(report: retry_messages.Report) -> bool:
    """Return True if a request failed, and a response had the status 429 or a `Retry-After`.

    A window that grew beyond what such an endpoint takes a second would only cause more of these responses.
    """
    return report.failed > 0 and (report.retry_after_s is not None or report.is_throttled)


def _max_silence_ms(policy: ShardPolicy) -> int:
    return round(max(policy.disable_after_s * MAX_SILENCE, policy.max_probe_interval_s + policy.lease_timeout_s) * 1000)
