"""Decide how many requests of the retry lane may be under way to one endpoint, and until when it is left alone.

Runs in the executors. Must not import pyspark or psycopg. Pure: reports and `now_ms` in.

An endpoint that fails is asked by one request at a time, the probe, at growing intervals. One that answers again gets two,
four, eight requests: what has piled up must not knock it over a second time.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from delivery.webhooks.policy import retry_decision
from delivery.webhooks.retries import health_hints, retry_messages
from delivery.webhooks.scheduling import circuit_breaker

FRESH = 8
"""The window of an endpoint of which nothing is known."""
OPEN = 64
"""An endpoint that was held is open again with such a window."""
NEVER_MS = 2**62
MEMORY_MS = 60_000
"""So long the last report counts for more than what other lanes say, who know of a recovery later; so long an endpoint is
remembered as it was for which nothing waits any more; and so long what has failed is news."""
STOPPED = frozenset({retry_decision.ENDPOINT_PAUSED, retry_decision.ENDPOINT_DISABLED, retry_decision.ENDPOINT_QUARANTINED})
"""Reasons of any lane by which the endpoint is not asked because of its row, and which say nothing of its health."""
ILL = frozenset({retry_decision.CIRCUIT_OPEN, retry_decision.LANE_DEADLINE, retry_decision.GONE}) | STOPPED
"""Reasons of another lane that say that there is no use in asking the endpoint now."""
COUNTED = circuit_breaker.UNHEALTHY | circuit_breaker.REFUSED
"""Error classes of attempts by which the endpoint, alive or not, has not accepted something."""

MOST_SILENCE = 0.5
"""Of the time after which an endpoint that has only failed is disabled. After a longer silence, as when the job did not run,
that time begins anew: nobody asked the endpoint meanwhile. Two probes and their reports may be as far apart as the retry lane
takes at most: that is no silence, however short the time is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The settings of the area `retry`, in plain numbers."""

    probe_interval_s: float = 5.0
    max_probe_interval_s: float = 60.0
    max_turn: int = 256
    max_pending: int = 200_000
    """Events of one endpoint."""
    disable_after_s: float = 432_000.0
    away_s: float = 120.0
    """A turn whose report has not come by then is lost, and is repeated. Who delivers it reports in time, and gives back what
    it has not come to."""


class Window(msgspec.Struct, array_like=True, gc=False):
    """What is known of an endpoint by the reports of its turns."""

    size: int = FRESH
    """So many requests may be under way."""
    hold_until_ms: int = 0
    """It is left alone until then."""
    holds: int = 0
    """How often in a row it has been held."""
    is_open: bool = True
    """Not, from when it is held until its window is OPEN."""
    failing_since_ms: int | None = None
    """When something was not accepted, since when nothing has been, in no lane."""
    failed_ms: int = 0
    """When the last was not."""
    known_until_ms: int = 0
    """As long as the last report is not out of date."""
    has_only_failed: bool = False
    """Whether it has by the last report that said something of it."""

    def heard(self, reason: str, policy: Policy, now_ms: int, since_ms: int) -> None:
        """Take why another lane has handed something over, at `since_ms`. What has failed there counts, whatever is known."""
        if reason in STOPPED:
            self.failing_since_ms = None
        elif reason in COUNTED:
            self.failed(policy, min(since_ms, now_ms))
        if reason in ILL and now_ms >= self.known_until_ms:
            self._hold(policy, now_ms)
            self._remember(now_ms)

    def accepted(self) -> None:
        """Take note that it has accepted something, in any lane."""
        self.failing_since_ms = None

    def failed(self, policy: Policy, at_ms: int) -> None:
        """Take note that it has not accepted something, in any lane. After a silence it has only failed from then on."""
        if self.failing_since_ms is None or at_ms - self.failed_ms > _most_silence_ms(policy):
            self.failing_since_ms = self.failed_ms = at_ms
        self.failed_ms = max(self.failed_ms, at_ms)

    def reported(self, report: retry_messages.Report, policy: Policy, now_ms: int) -> None:
        """Take what came of a turn.

        1. Nothing could be attempted: held, and nothing is said of its health.
        2. Only failures: held, and asked by a probe. In order, one key's failures do not hold the others: the window halves.
        3. Failures and answers: it flaps, and has to be asked less, not to be left alone.
        4. Only answers, also those that accept nothing: it is alive, and the window doubles.
        5. Neither, for faults of ours: nothing is learnt.

        Whatever it was, the endpoint is left alone for as long as it asked for. To accept nothing is what it may be disabled
        for, if it goes on for long: by failures, or by refusing it (4xx, redirects).
        """
        if report.hold is not None:
            self.failing_since_ms, self.has_only_failed = None, False
            self._hold(policy, now_ms)
        elif report.delivered or report.refused:
            self.holds, self.has_only_failed = 0, False
            self.size = max(1, self.size // 2) if report.failed else min(self.size * 2, policy.max_turn)
            self.is_open = self.is_open or self.size >= min(OPEN, policy.max_turn)
        elif report.failed and report.order_key is None:
            self.has_only_failed = True
            self._hold(policy, now_ms)
        elif report.failed:
            self.has_only_failed = True
            self.size = max(1, self.size // 2)
        if report.delivered:
            self.accepted()
        elif report.hold is None and (report.failed or report.refused):
            self.failed(policy, min(report.at_ms or now_ms, now_ms))
        if report.retry_after_s is not None:
            self.hold_until_ms = max(self.hold_until_ms, now_ms + round(report.retry_after_s * 1000))
        self._remember(now_ms)

    @property
    def held_until_ms(self) -> int:
        """Until when other lanes are to leave the endpoint to the retry lane."""
        return self.hold_until_ms if self.is_open else NEVER_MS

    @property
    def is_ill(self) -> bool:
        """Tell whether the endpoint was failing when it was last heard of, or was held and is not wholly back."""
        return self.has_only_failed or not self.is_open

    def is_failing(self, policy: Policy, now_ms: int) -> bool:
        """Tell whether nothing has been accepted for so long that the endpoint is to be disabled, and the last failure is news.

        It is told again with each failure, as who is to disable it may be away. One that was enabled a while ago is left alone
        there: see subscriptions_db.registration.endpoint_status.
        """
        if self.failing_since_ms is None or now_ms - self.failed_ms >= MEMORY_MS:
            return False
        # Whatever a fast lane may have kept to itself.
        enough_s = policy.disable_after_s + health_hints.told_every_s(policy.disable_after_s)
        return self.failed_ms - self.failing_since_ms >= enough_s * 1000

    def kept_until_ms(self, policy: Policy) -> int:
        """Return until when to remember it though nothing waits for it: what has failed counts until there was silence."""
        if self.failing_since_ms is None:
            return self.known_until_ms
        return max(self.known_until_ms, self.failed_ms + _most_silence_ms(policy))

    def of_old(self) -> Window:
        """Return what is still true of it when the last report is out of date: for how long it has only failed."""
        return Window(failing_since_ms=self.failing_since_ms, failed_ms=self.failed_ms)

    def _hold(self, policy: Policy, now_ms: int) -> None:
        wait_s = min(policy.probe_interval_s * 2.0 ** min(self.holds, 32), policy.max_probe_interval_s)
        self.hold_until_ms = max(self.hold_until_ms, now_ms + round(wait_s * 1000))
        self.holds += 1
        self.size = 1
        self.is_open = False

    def _remember(self, now_ms: int) -> None:
        self.known_until_ms = max(self.hold_until_ms, now_ms) + MEMORY_MS


def _most_silence_ms(policy: Policy) -> int:
    return round(max(policy.disable_after_s * MOST_SILENCE, policy.max_probe_interval_s + policy.away_s) * 1000)
