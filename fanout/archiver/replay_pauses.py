"""Decide for how long a replay pauses after a failure, so that a replay that fails each time does not delay others. Pure.

Runs in `fanout archive`. A replay may fail again and again for a reason of its own: its events need a schema that cannot be
read, or this login may not read their topic.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST_PAUSE_S, LONGEST_PAUSE_S = 30.0, 900.0
"""Seconds that a replay pauses after its first failure, and the longest pause. The pause doubles with each failure in a row."""


@dataclass(frozen=True, slots=True)
class _Pause:
    failures: int
    until: float


class ReplayPauses:
    """The pauses of all replays, by the number of the replay. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._pauses: dict[int, _Pause] = {}

    def failed(self, number: int, now: float) -> float:
        """Begin a pause; return its seconds: FIRST_PAUSE_S, doubled by each further failure in a row up to LONGEST_PAUSE_S."""
        failures = self._pauses[number].failures + 1 if number in self._pauses else 1
        seconds = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures - 1, 30))
        # Nothing reports the end of a cancelled replay, so a pause that ended long ago is forgotten.
        self._pauses = {other: pause for other, pause in self._pauses.items() if now < pause.until + LONGEST_PAUSE_S}
        self._pauses[number] = _Pause(failures, now + seconds)
        return seconds

    def succeeded(self, number: int) -> None:
        """Forget the failures of a replay."""
        self._pauses.pop(number, None)

    def is_paused(self, number: int, now: float) -> bool:
        """Return True if the replay's pause is not over."""
        return number in self._pauses and now < self._pauses[number].until
