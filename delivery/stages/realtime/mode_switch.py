"""Decide whether the real-time lane delivers record by record or catches up in micro-batches. Pure. Runs on the driver.

real time ── records older than `behind_s` for FOR_S ─► catching up ── records younger than `behind_s`/2 for FOR_S ─► real time
                                                         (for at least `least_s`, which doubles if real time was short)
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass

FOR_S = 3.0
"""Seconds for which records must be old, or young, before the lane changes its mode. So a short pause changes nothing."""
EVERY_S = 1.0
"""Seconds between two judgements of the records' age. A judgement uses the oldest record that was read since the last one. A
single poll says too little: the driver polls more often than tasks report, so many polls see no record."""
LEAST_S = 10.0
"""Shortest duration of a catch-up after more than LASTED_S of real time, in seconds. If less real time preceded the catch-up,
its shortest duration is twice that of the last catch-up, at most MOST_S. For a first catch-up soon after the start it is twice
LEAST_S. The durations keep the changes of the mode rare, because each change stops delivery for some seconds."""
MOST_S = 300.0
"""Upper bound of a catch-up's shortest duration, in seconds. A lane that gets more records than it can deliver one by one
reaches this bound."""
LASTED_S = 120.0
"""If the lane stays in real time for longer than this many seconds, the last catch-up was successful. The next one may then end
after LEAST_S again."""


class Mode(enum.StrEnum):
    """The mode of the real-time lane: the trigger of its query."""

    REALTIME = "real time"
    """Deliver record by record, under Spark's real-time trigger."""
    CATCHING_UP = "micro-batches"
    """Deliver in micro-batches, as the direct lane does, because the records have become too old."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeSwitch:
    """The lane's mode, and the observations that decide when it changes. Times are monotonic, in seconds."""

    mode: Mode = Mode.REALTIME
    since: float
    """When the lane entered this mode."""
    least_s: float = LEAST_S
    """Shortest duration of the present catch-up, in seconds. In real time: the value of the last catch-up; before the first,
    LEAST_S."""
    differs_since: float | None = None
    """Since when the age of the records calls for the other mode; None: the age fits the present mode."""
    oldest_s: float = 0.0
    """Age of the oldest record that was read since the last judgement, in seconds."""
    judged_at: float | None = None
    """When the last judgement was made; None: never."""

    def observe(self, delay_s: float, behind_s: float, now: float) -> ModeSwitch:
        """Return the state after one more observation: the mode may have changed.

        Called at each poll of the tasks' reports. Not called with `fanout run --once`, nor while the lane is paused, has paused
        partitions or has too few task slots.

        `delay_s` is the age of the oldest record read since the last call, by the records' times in Kafka. With `CreateTime`
        the producers' clocks set these times, so one producer with a slow clock makes the lane look behind. 0: no record was
        read, so the lane is not behind. `behind_s` is the age above which the lane catches up in micro-batches, the setting
        `realtime.behind_after_s`.
        """
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
            return self.in_real_time(now)
        has_lasted = now - self.since > LASTED_S
        return ModeSwitch(mode=Mode.CATCHING_UP, since=now, least_s=LEAST_S if has_lasted else min(2 * self.least_s, MOST_S))

    def in_real_time(self, now: float) -> ModeSwitch:
        """Return the state after the lane has entered real time at `now`, whatever the age of its records."""
        return ModeSwitch(mode=Mode.REALTIME, since=now, least_s=self.least_s)
