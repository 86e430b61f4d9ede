"""Decide when a fast lane tells the retry lane that an endpoint accepts what it is sent.

Runs in the executors. Must not import pyspark or psycopg. Pure: the clock's reading comes in.

The retry lane sees what fails, and is to disable who accepts nothing at all. What the fast lanes deliver it never sees. To tell
it of each delivery would cost as much as the delivery's row; now and then is enough to know that there were some.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from delivery.model import Endpoint, EndpointId

SHARE = 1 / 8
"""Of the time after which an endpoint is disabled. A worker tells no later than that of each: some 25 records a second, of 60
bytes, with 100 workers, 10,000 endpoints and the five days of `retry.disable_after_s`; and of each once when it begins."""
SOONEST = 0.5
"""Of that: spread from then on, so that what was told together is not told together for ever."""
MAX_KNOWN = 100_000
"""Endpoints of which a worker remembers when it told. With more, it tells of some too often."""


def told_every_s(disable_after_s: float) -> float:
    """Return how old what a worker has told may be. What was accepted so much earlier may be what it was told for."""
    return disable_after_s * SHARE


class Acceptances:
    """What one worker has told. It tells of each endpoint when it first sees it accept something: it may be a new worker."""

    def __init__(self, every_s: float, rng: random.Random | None = None) -> None:
        self._every_s = every_s
        self._rng = rng or random.Random()  # noqa: S311  # spreads times
        self._again_at: dict[EndpointId, float] = {}

    def news(self, accepted: Iterable[Endpoint], now: float) -> list[Endpoint]:
        """Return the endpoints to tell of, of those that have accepted something. `now` is monotonic, in seconds."""
        news = [one for one in accepted if self._again_at.get(one.endpoint_id, now) <= now]
        if len(self._again_at) + len(news) > MAX_KNOWN:
            self._again_at.clear()
        for one in news:
            self._again_at[one.endpoint_id] = now + self._every_s * self._rng.uniform(SOONEST, 1.0)
        return news
