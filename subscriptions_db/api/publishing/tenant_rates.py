"""Limit the events a second that all API keys together publish for one tenant.

Pure, apart from the clock.

Runs in the API. Each process counts the events that it accepts, so a tenant has its whole rate in each process.
"""

from __future__ import annotations

import collections
import math
import time
from collections.abc import Callable, Collection, Iterable

import cachetools

from delivery.registry_model import TenantId
from delivery.webhooks.scheduling import limits
from subscriptions_db.api.contract import problems

MAX_TENANTS = 10_000
"""Maximum tenants that one process counts. Beyond it, the process forgets the tenant whose last request is the oldest."""


class TenantRates:
    """The rates of the tenants. Lives on the event loop, and nothing in it waits, so concurrent requests count one by one."""

    def __init__(self, max_per_s: float, burst_share: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`max_per_s` is the events a second of each tenant; 0: no limit.

        The share `burst_share` of these events may come at once, at least one event.
        """
        self._max_per_s = max_per_s
        self._burst_share = burst_share
        self._clock = clock
        self._paces: cachetools.LRUCache[TenantId, limits.Pace] = cachetools.LRUCache(MAX_TENANTS)

    @property
    def is_on(self) -> bool:
        """Return True if tenants have a limit."""
        return self._max_per_s > 0

    def spend(self, tenants: Iterable[TenantId]) -> None:
        """Count one event for each item of `tenants`; raise Refused with 429 if one of the tenants is over its rate.

        A refused request counts for none of its tenants. An accepted request counts with all its events, also beyond the rate:
        otherwise a request with more events than the rate could never be published.
        """
        if not self.is_on:
            return
        counted = collections.Counter(tenants)
        now = self._clock()
        paces = {tenant: self._pace(tenant) for tenant in counted}
        wait_s, slowest = max(((pace.wait_s(now), tenant) for tenant, pace in paces.items()), default=(0.0, ""))
        if wait_s > 0:
            retry_s = math.ceil(wait_s)
            detail = (
                f"more than {self._max_per_s:g} events a second of tenant {slowest}, by all keys together: nothing was "
                f"published, try again in {retry_s} s"
            )
            raise problems.Refused(429, detail, headers={"retry-after": str(retry_s)}, code=problems.TENANT_RATE_LIMITED)
        for tenant, count in counted.items():
            paces[tenant].consume(now, count)

    def room(self, tenants: Collection[TenantId]) -> limits.Room:
        """Return the rate's state (limits.Room) for the tenant that may publish the fewest events now.

        `tenants` is not empty. Called only if `is_on`.
        """
        now = self._clock()
        return limits.least_room(self._pace(tenant).room(now) for tenant in tenants)

    def _pace(self, tenant: TenantId) -> limits.Pace:
        return self._paces.setdefault(tenant, limits.Pace(self._max_per_s, self._burst_share))
