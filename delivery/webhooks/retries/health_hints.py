"""Decide when the direct, batch or real-time lane reports to the retry lane that an endpoint accepts requests (a health hint).

Runs in the executors; `report_interval_s` also on the driver. Pure, except for random intervals: the caller passes the time.

The retry lane reports endpoints that accept nothing, and the driver disables these endpoints. The other lanes report
deliveries that an endpoint did not accept: by retry entries, or by hints if these deliveries are given up. A report for each
success would cost as much as the delivery's own record. So a worker reports each accepting endpoint now and then, and after
each failure. An endpoint that accepts some events and refuses others is then known to be healthy (`lease_triage.is_poison`).
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from delivery.registry_model import Endpoint, EndpointId

SHARE = 1 / 8
"""Longest interval between two hints of a worker about an endpoint that accepts requests, as a share of
`retry.disable_after_s`. With 100 workers, 10,000 endpoints and the default of five days: some 25 records of 60 bytes a
second. In addition, a worker makes at most one hint about an endpoint for each task in which the endpoint failed."""
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
    """Decide for one worker when a hint about an accepting endpoint is due. The first acceptance is reported at once.

    After a hint, the next hint about the endpoint is due after a random time of at most `every_s` seconds, or after a failure
    of the endpoint. It is made at the first acceptance after that. If more than `max_known` endpoints have a next time, all
    these times are forgotten.
    """

    def __init__(self, every_s: float, rng: random.Random | None = None, *, max_known: int = MAX_KNOWN) -> None:
        self._every_s = every_s
        self._max_known = max_known
        self._rng = rng or random.Random()  # noqa: S311  # spreads times
        self._next_at: dict[EndpointId, float] = {}

    def to_report(self, accepted: Iterable[Endpoint], failed: Iterable[EndpointId], now: float) -> list[Endpoint]:
        """Return those of the `accepted` endpoints that are to be reported now, and count them as reported.

        `accepted` and `failed` have the endpoints that accepted or failed a request since the last call. `now` is monotonic, in
        seconds.
        """
        for endpoint_id in failed:
            self._next_at.pop(endpoint_id, None)
        due = [endpoint for endpoint in accepted if self._next_at.get(endpoint.endpoint_id, now) <= now]
        if len(self._next_at) + len(due) > self._max_known:
            self._next_at.clear()
        for endpoint in due:
            self._next_at[endpoint.endpoint_id] = now + self._every_s * self._rng.uniform(SHORTEST, 1.0)
        return due
