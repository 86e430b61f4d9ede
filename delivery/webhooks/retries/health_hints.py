"""Decide when the direct, batch or real-time lane reports to the retry lane that an endpoint accepts requests (a health hint).

Runs in the executors; `report_interval_s` also on the driver. Pure, except for random intervals: the caller passes the time.

The driver disables an endpoint that accepts nothing for a long time in any lane. The retry lane reports these endpoints to the
driver, so the other lanes must report failures and acceptances to the retry lane. They report failures by retry entries, or by
hints if the deliveries are given up. A hint for each acceptance would cost as much as the delivery's own record. So the retry
lane names the endpoints that have accepted nothing since their last failure (watched endpoints). Each worker reports the next
acceptance by a watched endpoint. An endpoint that accepts some events and refuses others is then known to be healthy
(`lease_triage.is_poison`).
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from delivery.registry_model import Endpoint, EndpointId
from delivery.webhooks.scheduling import limits

SHARE = 1 / 8
"""Longest interval between two hints of a worker about an endpoint that accepts requests, as a share of
`retry.disable_after_s`, if the worker does not know which endpoints are watched."""
WATCHED_S = 1.0
"""Longest interval, in seconds, between two hints of a worker about a watched endpoint, if the driver names one or two watched
endpoints. For more endpoints see EACH_S. A watched endpoint has accepted no request since its last failure, as far as the retry
lane knows. With the default settings, each micro-batch of the retry lane then has a hint. After each hint, the retry lane
leaves the poison failures of one report out of its count (`Window._forgiven`)."""
EACH_S = 0.5
"""Seconds that each watched endpoint adds to the longest interval between two hints about one endpoint: with 20 watched
endpoints, the longest interval is 10 s. So the number of hints a second hardly depends on the number of watched endpoints."""
MAX_PER_S = 10.0
"""Most hints of a worker in a second, if the worker knows the watched endpoints. An acceptance beyond this bound is not
reported. A later acceptance by the same endpoint is reported instead."""
SHORTEST = 0.5
"""Shortest interval between two hints, as a share of the longest interval. Intervals are random between the two, so that hints
of many endpoints do not stay in step."""
MAX_KNOWN = 100_000
"""Maximum of endpoints of which a worker remembers the time of the next hint. With more, the worker forgets all these times,
and reports the endpoints too early."""


def report_interval_s(disable_after_s: float) -> float:
    """Return the longest interval between two hints of a worker about an endpoint that accepts requests, in seconds.

    A worker's last hint is at most this much older than the last request of this worker that the endpoint accepted.
    """
    return disable_after_s * SHARE


class Acceptances:
    """Decide for one worker when a hint about an accepting endpoint is due.

    A hint tells the retry lane that an endpoint has accepted a request. A hint is due at an endpoint's first acceptance in this
    worker, and at its first acceptance after each failure. The next hint about the endpoint is due after a random time of at
    most `every_s` seconds. After a call of `watch`, three things change:
    1. The worker reports only the named endpoints, and endpoints that failed in this worker.
    2. The random time is shorter.
    3. The worker sends at most MAX_PER_S hints a second.

    The worker remembers the next times and the failures of at most `max_known` endpoints together. With more, it forgets all.
    """

    def __init__(self, every_s: float, rng: random.Random | None = None, *, max_known: int = MAX_KNOWN) -> None:
        self._every_s = every_s
        self._max_known = max_known
        self._rng = rng or random.Random()  # noqa: S311  # spreads times
        self._watched: frozenset[EndpointId] | None = None
        self._pace = limits.Pace(MAX_PER_S, burst_share=0.5)
        self._failed: set[EndpointId] = set()
        """The endpoints that failed, and were not reported since."""
        self._next_at: dict[EndpointId, float] = {}

    def watch(self, endpoints: frozenset[EndpointId] | None) -> None:
        """From now on, report only `endpoints`, and endpoints that failed in this worker.

        The retry lane needs to know the next acceptance by each of `endpoints`. An endpoint that was not named at the last call
        is reported at its next acceptance, without a wait. If `endpoints` is None, the worker does not know these endpoints,
        and reports all.
        """
        if endpoints is not None:
            for endpoint_id in endpoints - (self._watched or frozenset()):
                self._next_at.pop(endpoint_id, None)
        self._watched = endpoints

    def to_report(self, accepted: Iterable[Endpoint], failed: Iterable[EndpointId], now: float) -> list[Endpoint]:
        """Return the endpoints in `accepted` that are to be reported now, and count them as reported.

        `accepted` and `failed` have the endpoints that accepted or failed a request since the last call. `now` is monotonic, in
        seconds.
        """
        self._failed.update(failed)
        due = [endpoint for endpoint in accepted if self._is_due(endpoint.endpoint_id, now)]
        if self._watched is not None:
            due = due[: self._pace.room(now).remaining]
            self._pace.consume(now, len(due))
        if len(self._next_at) + len(self._failed) + len(due) > self._max_known:
            self._next_at.clear()
            self._failed.clear()
        every_s = self._interval_s()
        for endpoint in due:
            self._failed.discard(endpoint.endpoint_id)
            self._next_at[endpoint.endpoint_id] = now + every_s * self._rng.uniform(SHORTEST, 1.0)
        return due

    def _is_due(self, endpoint_id: EndpointId, now: float) -> bool:
        if endpoint_id in self._failed:
            return True
        return (self._watched is None or endpoint_id in self._watched) and self._next_at.get(endpoint_id, now) <= now

    def _interval_s(self) -> float:
        if self._watched is None:
            return self._every_s
        return min(self._every_s, max(WATCHED_S, len(self._watched) * EACH_S))
