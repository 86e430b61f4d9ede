"""Decide when a fast lane tells the retry lane that an endpoint accepts what it is sent.

Runs in the executors. Must not import pyspark or psycopg. Pure: the clock's reading comes in.

The retry lane sees what fails, and is to disable who accepts nothing at all. What the fast lanes deliver it never sees. To tell
it of each delivery would cost as much as the delivery's row; now and then is enough to know that there were some.
"""

from __future__ import annotations

from collections.abc import Iterable

from delivery.model import Endpoint, EndpointId

SHARE = 1 / 8
"""Of the time after which an endpoint is disabled. A worker tells so often of each: 18 records a second, of 60 bytes, with 100
workers, 10,000 endpoints and the five days of `retry.disable_after_s`."""
MAX_KNOWN = 100_000
"""Endpoints of which a worker remembers when it told. With more, it tells of some too often."""


def told_every_s(disable_after_s: float) -> float:
    """Return how old what a worker has told may be. What was accepted so much earlier may be what it was told for."""
    return disable_after_s * SHARE


class Acceptances:
    """What one worker has told. It tells of each endpoint when it first sees it accept something: it may be a new worker."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._told_at: dict[EndpointId, float] = {}

    def news(self, accepted: Iterable[Endpoint], now: float) -> list[Endpoint]:
        """Return the endpoints to tell of, of those that have accepted something. `now` is monotonic, in seconds."""
        news = [one for one in accepted if now - self._told_at.get(one.endpoint_id, float("-inf")) >= self._every_s]
        if len(self._told_at) + len(news) > MAX_KNOWN:
            self._told_at.clear()
        self._told_at |= {one.endpoint_id: now for one in news}
        return news
