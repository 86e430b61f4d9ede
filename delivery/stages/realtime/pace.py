"""Decide whether the real-time lane delivers record by record, or catches up in micro-batches. Pure.

real time ── records older than `behind_s` for FOR_S ─► catching up ── records younger than half of it for FOR_S ─► real time
                                                         (for the least time, which doubles when it has not helped)
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass

FOR_S = 3.0
"""Seconds for which records are old, or young, before the lane changes over: a single pause says nothing."""
EVERY_S = 1.0
"""Seconds of which the oldest record is judged. Tasks report more rarely than the driver looks, which says nothing."""
LEAST_S = 10.0
"""Seconds of micro-batches at least. Each change stops the flow for some seconds."""
MOST_S = 300.0
"""The longest such time, for a lane that gets more than it can carry record by record."""
LASTED_S = 120.0
"""Seconds of real time after which the lane is thought to carry what comes."""


class Mode(enum.StrEnum):
    REALTIME = "real time"
    CATCHING_UP = "micro-batches"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """In which mode the lane is, and since when. Times are monotonic, in seconds."""

    mode: Mode = Mode.REALTIME
    since: float
    least_s: float = LEAST_S
    """Seconds of micro-batches at least, next time or now."""
    differs_since: float | None = None
    """Since when the records say that the other mode is right."""

    oldest_s: float = 0.0
    """How old the oldest record was since the last judgement."""
    judged_at: float | None = None

    def told(self, delay_s: float, behind_s: float, now: float) -> Pace:
        """Return the pace after hearing how old the records were that were read just now. Called also where none were: 0."""
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
            return Pace(mode=Mode.REALTIME, since=now, least_s=self.least_s)
        has_lasted = now - self.since > LASTED_S
        return Pace(mode=Mode.CATCHING_UP, since=now, least_s=LEAST_S if has_lasted else min(2 * self.least_s, MOST_S))
