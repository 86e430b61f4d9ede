"""Limit the events that all API keys together publish for one tenant in a day of UTC.

Runs in the API, on its event loop. The process counts the events itself, so no request waits for Postgres. Each second the
process adds its new counts to the sums of all processes in Postgres, and reads these sums. So all processes together may exceed
a quota by the events of about a second, and by the requests in flight. While Postgres takes no counts, each process knows only
its own new events, so the excess is larger. If a connection breaks while Postgres commits, the counts may be added twice.

A publisher can invent tenants. So the counts are bounded in three ways:

1. Each process remembers a bounded number of tenants.
2. Postgres has the counts of registered tenants only. Each process counts the events of other tenants without Postgres.
   These events are due to nobody.
3. Events are not counted if their tenant's id does not have the form of the registry's ids.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import datetime as dt
import itertools
import logging
import math
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping

import cachetools
from aiohttp import web

from delivery import errors
from delivery.registry_model import TenantId
from delivery.webhooks.scheduling import limits
from subscriptions_db.api.contract import problems
from subscriptions_db.api.publishing.published_counts import Counts, Sums, TenantSum
from subscriptions_db.manifest import mistakes

log = logging.getLogger(__name__)

WRITE_AFTER_S = 1.0
"""Seconds in which counts are collected before they are written."""
RETRY_AFTER_S = 10.0
"""Seconds after which counts that Postgres did not take are written again. A failed write occupies a worker thread for 2 s."""
MAX_NAMED = 20
"""Most tenants that one log line names."""
MAX_TENANTS = 10_000
"""Maximum tenants whose sums one process remembers. Beyond it, the process forgets the tenant that it used least recently. The
sum of a forgotten tenant is read again about a second after the tenant's next event."""
MAX_PENDING = 100_000
"""Maximum pairs of a day and a tenant with events that Postgres has not counted yet. Beyond it, the oldest pairs are forgotten.
A write in flight may have as many more. A key with 10,000 events a second, each of another tenant, reaches this maximum after
10 s without Postgres."""

_REGISTRY_ID = re.compile(mistakes.ID_PATTERN)

Write = Callable[[Counts, dt.date], Awaitable[Sums]]
"""A function that adds this process's counts, by day and tenant, to the sums of all processes in Postgres. It returns the new
sums of these days and tenants. Its second argument is today's date: the function also deletes the counts of days before
yesterday. It raises FanoutError if Postgres is unavailable."""


class DailyQuotas:
    """Count the events of each tenant today, and refuse requests of tenants that have reached their quotas.

    Lives on the event loop.
    """

    def __init__(
        self,
        max_per_day: int,
        write: Write,
        *,
        now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
        write_after_s: float = WRITE_AFTER_S,
        retry_after_s: float = RETRY_AFTER_S,
        max_tenants: int = MAX_TENANTS,
        max_pending: int = MAX_PENDING,
    ) -> None:
        """`max_per_day` is the quota of each tenant that has none of its own, in events a day.

        0: no tenant has a quota, own quotas do not apply, and nothing is counted.
        """
        self._max_per_day = max_per_day
        self._write = write
        self._now = now
        self._write_after_s = write_after_s
        self._retry_after_s = retry_after_s
        self._max_pending = max_pending
        self._sums: cachetools.LRUCache[TenantId, int] = cachetools.LRUCache(max_tenants)
        """The events of all processes on the day `_day`, as last read."""
        self._own: cachetools.LRUCache[TenantId, int] = cachetools.LRUCache(max_tenants)
        """The own quotas of tenants, as last read."""
        self._day = now().date()
        self._pending: collections.Counter[tuple[dt.date, TenantId]] = collections.Counter()
        """The events of this process that are not yet added to the counts in Postgres, without those of the write in flight."""
        self._in_flight: collections.Counter[tuple[dt.date, TenantId]] = collections.Counter()
        """The events of the write in flight. Empty: no write is in flight."""
        self._writing: asyncio.Task[None] | None = None
        self._ending = asyncio.Event()

    @property
    def is_on(self) -> bool:
        """Return True if tenants have quotas."""
        return self._max_per_day > 0

    def require_room(self, tenants: Iterable[TenantId]) -> None:
        """Raise Refused with 429 if one of the tenants has reached its quota. `Retry-After` is the rest of the day.

        A request whose tenants are all below their quotas is accepted whole, also if its events exceed a quota. The sum and the
        quota of a refused tenant are read again soon, because the operator may have raised the quota.
        """
        if not self.is_on:
            return
        full = sorted(tenant for tenant in set(tenants) if self._left(tenant) <= 0)
        if full:
            # Reads their sums and quotas again. The operator may have given a tenant a larger quota.
            self._add(dict.fromkeys(full, 0))
            detail = (
                f"tenant {full[0]} has published its quota of {self._quota(full[0])} events today, by all keys together: "
                "nothing was published, try again after 00:00 UTC, or ask the operator for a larger quota"
            )
            headers = {"retry-after": str(math.ceil(self._left_of_day_s()))}
            raise problems.Refused(429, detail, headers=headers, code=problems.QUOTA)

    def count(self, tenants: Iterable[TenantId]) -> None:
        """Count events that Kafka has, or may have because it did not confirm them. Each item is the tenant of one event.

        Tenants whose ids do not have the form of the registry's ids are left out.
        """
        if not self.is_on:
            return
        self._add({tenant: events for tenant, events in collections.Counter(tenants).items() if _REGISTRY_ID.fullmatch(tenant)})

    def room(self, tenants: Collection[TenantId]) -> limits.Room:
        """Return the quota and the remaining events of the tenant with the fewest left today, and the seconds until tomorrow.

        `tenants` is not empty.
        """
        left, limit = min((self._left(tenant), self._quota(tenant)) for tenant in tenants)
        return limits.Room(limit=limit, remaining=max(0, left), full_in_s=self._left_of_day_s())

    async def end(self, _: web.Application) -> None:
        """Write the pending counts at once, because the server stops. Counts that Postgres does not take now are lost."""
        self._ending.set()
        if self._writing is not None:
            await self._writing

    def _quota(self, tenant: TenantId) -> int:
        return self._own.get(tenant, self._max_per_day)

    def _left(self, tenant: TenantId) -> int:
        """Return how many events of a tenant are left today; below 0 if the tenant has exceeded its quota."""
        today = self._today()
        own = self._pending[today, tenant] + self._in_flight[today, tenant]
        return self._quota(tenant) - self._sums.get(tenant, 0) - own

    def _today(self) -> dt.date:
        """Return the date, and forget the sums of an earlier day."""
        today = self._now().date()
        if today != self._day:
            self._day = today
            self._sums.clear()
        return today

    def _left_of_day_s(self) -> float:
        now = self._now()
        midnight = dt.datetime.combine(now.date() + dt.timedelta(days=1), dt.time(), dt.UTC)
        return (midnight - now).total_seconds()

    def _add(self, events: Mapping[TenantId, int]) -> None:
        """Add the events of each tenant to the pending counts of today, and write the counts later.

        With 0 events, only the tenant's sum and quota are read again. Beyond `max_pending`, the oldest counts are forgotten.
        """
        day = self._today()
        self._pending.update({(day, tenant): count for tenant, count in events.items()})
        self._forget_oldest()
        if self._pending and (self._writing is None or self._writing.done()):
            self._writing = asyncio.create_task(self._write_pending())

    def _forget_oldest(self) -> None:
        for oldest in list(itertools.islice(self._pending, max(0, len(self._pending) - self._max_pending))):
            del self._pending[oldest]

    async def _write_pending(self) -> None:
        """Collect counts for `write_after_s` seconds and write them together; repeat this until no count is pending.

        Write failed counts again after `retry_after_s` seconds. When the server stops, write at once, and do not try again.
        """
        wait_s = self._write_after_s
        while self._pending:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), wait_s)
            try:
                with self._in_one_write() as counts:
                    sums = await self._write(counts, self._today())
            except errors.FanoutError as exc:
                self._warn_of_unwritten(exc)
                if self._ending.is_set():
                    return
                wait_s = self._retry_after_s
                continue
            wait_s = self._write_after_s
            self._take(counts, sums)

    @contextlib.contextmanager
    def _in_one_write(self) -> Iterator[Counts]:
        """Yield the pending counts, which are in flight in the `with` block. After an error, they are pending again."""
        self._in_flight, self._pending = self._pending, collections.Counter()
        try:
            yield dict(self._in_flight)
        except BaseException:
            newer = self._pending
            self._pending = self._in_flight
            self._pending.update(newer)
            self._forget_oldest()
            raise
        finally:
            self._in_flight = collections.Counter()

    def _warn_of_unwritten(self, failure: errors.FanoutError) -> None:
        counts = self._pending  # of the failed write, and newer ones
        tenants = sorted({tenant for (_, tenant), events in counts.items() if events})
        named = {"tenant_ids": tenants[:MAX_NAMED]}
        if not tenants:  # only quotas were to be read
            return
        if self._ending.is_set():
            log.warning(
                "Postgres did not confirm the counts of %d published events of %d tenants before this process stopped (%s). "
                "The daily quotas probably lack these events, so these tenants can publish as many more on that day. There is "
                "nothing to do about the counts",
                sum(counts.values()), len(tenants), failure, extra=named,
            )  # fmt: skip
        else:
            log.warning(
                "Postgres did not confirm the counts of published events (%s): events of %d tenants are probably not counted "
                "there yet. This process keeps to the quotas by its own counts, and tries again every %g s. Counts that are "
                "unwritten when the process stops are lost. If this is logged often, check Postgres",
                failure, len(tenants), self._retry_after_s, extra=named,
            )  # fmt: skip

    def _take(self, counts: Counts, sums: Sums) -> None:
        """Remember the sums and the own quotas of the tenants whose counts were written.

        A tenant that `sums` lacks is not registered. For such a tenant, remember the counts of this process as the sum.
        """
        today = self._today()
        for (day, tenant), events in counts.items():
            found = sums.get((day, tenant)) or TenantSum(self._sums.get(tenant, 0) + events, None)
            if day == today:
                self._sums[tenant] = found.events
            if found.quota is None:
                self._own.pop(tenant, None)
            else:
                self._own[tenant] = found.quota
