"""Decide when a fast lane reports to the retry lane that an endpoint accepts requests.

Runs in the executors. Pure: the clock's reading comes in.

The retry lane disables an endpoint that accepts nothing. It sees failures, but no deliveries of the fast lanes. A report for
each delivery would cost as much as the delivery's own record. So a worker reports each accepting endpoint now and then.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from delivery.model import Endpoint, EndpointId

SHARE = 1 / 8
"""Longest interval between two reports of a worker about one endpoint, as a share of `retry.disable_after_s`. With 100 workers,
10,000 endpoints and the default of five days: some 25 records of 60 bytes a second."""
SHORTEST = 0.5
"""Shortest interval, as a share of the longest. Random intervals keep reports that coincided once from coinciding again."""
MAX_KNOWN = 100_000
"""Endpoints of which a worker remembers its last report. With more endpoints, some are reported too often."""


def report_interval_s(disable_after_s: float) -> float:
    """Return the longest interval between two reports about one endpoint: an acceptance is reported this late at most."""
    return disable_after_s * SHARE


class Acceptances:
    """The acceptances that one worker has reported. The first one of each endpoint is reported at once."""

    def __init__(self, every_s: float, rng: random.Random | None = None) -> None:
        self._every_s = every_s
        self._rng = rng or random.Random()  # noqa: S311  # spreads times
        self._next_at: dict[EndpointId, float] = {}

    def to_report(self, accepted: Iterable[Endpoint], now: float) -> list[Endpoint]:
        """Return the endpoints to report, of those that have accepted a request. `now` is monotonic, in seconds."""
        due = [endpoint for endpoint in accepted if self._next_at.get(endpoint.endpoint_id, now) <= now]
        if len(self._next_at) + len(due) > MAX_KNOWN:
            self._next_at.clear()
        for endpoint in due:
            self._next_at[endpoint.endpoint_id] = now + self._every_s * self._rng.uniform(SHORTEST, 1.0)
        return due
