"""Record the requests at the receivers: how often each event came to each endpoint, when, and with which signature."""

from __future__ import annotations

import bisect
import itertools
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable

import orjson

from fanout.local.receiver import Received

DIRECT, BATCH = "/direct", "/batch"


class Arrivals:
    """Filled by the receiver's thread, read by the tests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._times: list[float] = []
        """Arrival times of requests at the direct endpoint, in seconds of the monotonic clock."""
        self.unverified = 0

    def take(self, received: Received) -> None:
        """Take one request."""
        ids = [named.event_id for named in received.batch] if received.batch is not None else [event_id(received.body)]
        with self._lock:
            self._counts[received.path].update(ids)
            self.unverified += not received.is_verified
            if received.path == DIRECT:
                self._times.append(time.monotonic())

    def missing(self, ids: Iterable[str], path: str = DIRECT) -> list[str]:
        """Return which of the events have not come to the endpoint."""
        with self._lock:
            counts = self._counts[path]
            return [event_id for event_id in ids if not counts[event_id]]

    def repeated(self, ids: Iterable[str], path: str = DIRECT) -> int:
        """Return how often the events came beyond the first time."""
        with self._lock:
            counts = self._counts[path]
            return sum(max(0, counts[event_id] - 1) for event_id in ids)

    def total(self) -> int:
        """Return how many events have come, repeated ones included."""
        with self._lock:
            return sum(counts.total() for counts in self._counts.values())

    def longest_pause_s(self, begin: float, end: float) -> float:
        """Return the longest time without a request to the direct endpoint between two moments of the monotonic clock."""
        with self._lock:
            within = self._times[bisect.bisect_left(self._times, begin) : bisect.bisect_right(self._times, end)]
        return max(later - earlier for earlier, later in itertools.pairwise([begin, *within, end]))


def event_id(body: bytes) -> str:
    return str(orjson.loads(body)["id"])
