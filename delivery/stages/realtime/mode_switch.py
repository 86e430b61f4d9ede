"""Decide whether the real-time lane delivers record by record or catches up in micro-batches. Pure.

real time ── records older than `behind_s` for FOR_S ─► catching up ── records younger than half of it for FOR_S ─► real time
                                                         (for at least `least_s`, which doubles when it has not helped)
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass

FOR_S = 3.0
"""Seconds for which records must be old, or young, before the lane changes its mode. A single pause does not count."""
EVERY_S = 1.0
"""Seconds between two judgements, each by the oldest record since the last one. The driver polls more often than tasks report,
so a poll without a report says nothing."""
LEAST_S = 10.0
"""Shortest time in micro-batches, in seconds. Each change of the mode stops delivery for some seconds."""
MOST_S = 300.0
"""Upper bound of that time, in seconds, for a lane that gets more records than it can deliver one by one."""
LASTED_S = 120.0
"""Seconds in real time after which the lane counts as able to keep up."""


class Mode(enum.StrEnum):
    """The trigger under which the lane delivers."""

    REALTIME = "real time"
    CATCHING_UP = "micro-batches"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeSwitch:
    """The lane's mode, and since when. Times are monotonic, in seconds."""

    mode: Mode = Mode.REALTIME
    since: float
    least_s: float = LEAST_S
    """Shortest time in micro-batches, in seconds: of the present catch-up, or of the next one."""
    differs_since: float | None = None
    """Since when the age of the records calls for the other mode; None: it does not."""
    oldest_s: float = 0.0
    """Age of the oldest record since the last judgement, in seconds."""
    judged_at: float | None = None

    def observe(self, delay_s: float, behind_s: float, now: float) -> ModeSwitch:
        """Return the state after records of this age were read; 0 if none were read."""
        oldest_s = max(self.oldest_s, delay_s)
        if self.judged_at is not None and now - self.judged_at < EVERY_S:
            return dataclasses.replace(self, oldest_s=oldest_s)
        is_catching_up = self.mode is Mode.CATCHING_UP
        judged = dataclasses.replace(self, oldest_s=0.0, judged_at=now)
        differs = oldest_s < behind_s / 2 if is_catching_up else oldest_s > behind_s
        if not differs:
            return dataclasses.replace(judged, differs_since=None)
        since = now if self.differs_since is None else self.differs_since
        if now - since < FOR_S or (is_catching_up and now - self.since < self.least_s):
            return dataclasses.replace(judged, differs_since=since)
        if is_catching_up:
            return ModeSwitch(mode=Mode.REALTIME, since=now, least_s=self.least_s)
        has_lasted = now - self.since > LASTED_S
        return ModeSwitch(mode=Mode.CATCHING_UP, since=now, least_s=LEAST_S if has_lasted else min(2 * self.least_s, MOST_S))
