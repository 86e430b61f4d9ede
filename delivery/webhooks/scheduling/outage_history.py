"""Remember the outages of our own network, so that no failure during an outage disables an endpoint.

Pure: times are passed in, in ms since the epoch. Runs on the driver.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

MARGIN_MS = 10_000
"""Milliseconds after an outage that still count as outage. An attempt may begin during the outage and end later, and workers'
clocks may differ from the driver's by seconds."""
MAX_PAST = 100
"""Most outages that are remembered. The oldest are forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outages:
    """The last MAX_PAST outages of our own network since the driver began.

    An outage begins at the time when the network was last known to work. So failures before its detection do not count against
    an endpoint either.
    """

    ended: tuple[tuple[int, int], ...] = ()
    """First and last moment of each outage that is over, in order, in ms since the epoch. The last moment of each lies
    MARGIN_MS after the micro-batch that ended the outage. Two outages do not overlap."""
    last_healthy_ms: int = 0
    """When the network was last known to work. 0: not since the driver began. An outage then counts as begun at time 0."""
    is_ongoing: bool = False

    def after(self, *, is_broken: bool, is_healthy: bool, now_ms: int) -> Outages:
        """Return the history after a micro-batch.

        `is_broken` is True if the network is judged broken (NetworkHealth). `is_healthy` is True if the micro-batch proved that
        the network works. Both may be False. An ongoing outage ends with the first micro-batch for which `is_broken` is False,
        whatever `is_healthy` is.
        """
        if is_broken:
            return replace(self, is_ongoing=True)
        if self.is_ongoing:
            # Not before the end of the outage before it, whose margin would count twice.
            first_ms = max(self.last_healthy_ms, self.ended[-1][1] if self.ended else 0)
            ended = (*self.ended, (first_ms, now_ms + MARGIN_MS))
            return Outages(ended=ended[-MAX_PAST:], last_healthy_ms=now_ms)
        return replace(self, last_healthy_ms=now_ms) if is_healthy else self

    def failing_s(self, since_ms: int, failed_ms: int) -> float:
        """Return the seconds in which an endpoint failed by itself, first at `since_ms` and last at `failed_ms`.

        1. An outage is ongoing, or the last failure was during one: 0. The failure proves nothing, and a healthy endpoint
           accepts the next probe.
        2. Otherwise: the time between the two failures, less the parts of it that lie in outages.
        """
        if self.is_ongoing or any(first <= failed_ms <= last for first, last in self.ended):
            return 0.0
        ours_ms = sum(max(0, min(last, failed_ms) - max(first, since_ms)) for first, last in self.ended)
        return (failed_ms - since_ms - ours_ms) / 1000
