"""Bound the time that the tasks of one worker wait in vain for endpoints that have just become slow.

Pure: the caller passes the time. docs/adr/0055 has the reasons and the measurements.
"""

from __future__ import annotations

from delivery.webhooks.scheduling import response_times

CAPACITY_S = 0.4
"""Most seconds in the budget: two full waits, each of MIN_MARGIN_S and an endpoint's usual response time of at most 0.05 s."""
REFILL = 0.01
"""Seconds that the budget gains in a second: a full wait in 15 s. With six workers at most four micro-batches in ten seconds
are long, however many endpoints become slow."""


class WaitingBudget:
    """A token bucket of seconds, one for each worker.

    A task that has nothing else left to do waits for the responses to its attempts in flight. The wait is in vain if an attempt
    then moves to the background. It delays the events of all other endpoints. While the bucket has enough for a full wait, a
    task waits for MIN_MARGIN_S beyond an endpoint's usual response time. Otherwise the task waits for LATE_MARGIN_S beyond it.

    `capacity_s` is infinite in the real-time lane, where no event waits for the end of a task.
    """

    def __init__(self, capacity_s: float = CAPACITY_S) -> None:
        self._capacity_s = self._left_s = capacity_s
        self._counted_until = 0.0

    def margin_s(self, now: float) -> float:
        """Return the seconds for which a task waits beyond the usual response time. `now` is by the endpoint clock."""
        self._refill(now)
        return response_times.MIN_MARGIN_S if self._left_s >= response_times.MIN_MARGIN_S else response_times.LATE_MARGIN_S

    def spend(self, waited_s: float, now: float) -> None:
        """Take the seconds of a wait in vain that ends at `now` from the budget, at most as many as it has."""
        self._refill(now)
        self._left_s = max(0.0, self._left_s - waited_s)

    def _refill(self, now: float) -> None:
        self._left_s = min(self._capacity_s, self._left_s + max(0.0, now - self._counted_until) * REFILL)
        self._counted_until = now
