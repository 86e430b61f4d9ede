"""Look up the candidate subscriptions of an event in Postgres, and cache the answers.

Runs in the executors. The caller passes a RegistryReader, which queries Postgres. An answer is the result of one query.

An event needs two answers:
1. The subscriptions to all tenants (scope `everything`), by event type.
2. The subscriptions that name the event's tenant, by event type and tenant.
A single answer would store the subscriptions to all tenants again for each of thousands of tenants. A change of the registry is
in effect after `ttl_s` at the latest, when all older answers have expired.

The two answers are read at different revisions. A change between these revisions may move a subscription from one answer to the
other. Three rules let the subscription match exactly once:
1. The newer answer decides about a subscription that is in both answers.
2. A tenant's answer also has the subscriptions to all tenants that changed after the answer for all tenants was read. So the
   answer for all tenants, although older, need not be read again before the event is routed.
3. A new answer for all tenants may lack a subscription of the answer before, or have it with another scope. Then older answers
   for single tenants are read again, because the subscription may name those tenants now.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import cachetools

from delivery.model import Event
from delivery.registry_model import (
    PLATFORM,
    Endpoint,
    EndpointId,
    Revision,
    Subscription,
    SubscriptionId,
    TenantId,
    TenantStatus,
)
from delivery.webhooks.routing import matching, registries
from delivery.webhooks.routing.registry_snapshot import Snapshot

MAX_SHARED_ENDPOINTS = 20_000
"""Maximum of endpoints whose rows are shared between answers, and of cached destinations. The platform must support 10,000
endpoints and more."""


class RegistryReader(Protocol):
    """Queries Postgres. Called from a thread, never twice at the same time. Waits while Postgres is unavailable."""

    @property
    def losses(self) -> int:
        """Return how many look-ups found that Postgres had lost commits on which an earlier answer was based.

        A look-up is counted before it returns.
        """

    def candidates(self, event_type: str, tenant_id: TenantId | None, since: Revision | None = None) -> Snapshot:
        """Return the subscriptions that can match the event type and that name the tenant; with their endpoints and the tenant.

        With `since`, also return the subscriptions to all tenants that can match the event type and changed after `since`. If
        `tenant_id` is None, return instead all subscriptions to all tenants that can match the event type, with their
        endpoints.
        """

    def endpoint(self, endpoint_id: EndpointId) -> Snapshot:
        """Return the endpoint, if it is registered, and all subscriptions of the endpoint."""

    def tenants(self, tenant_ids: Collection[TenantId]) -> Snapshot:
        """Return the tenants of `tenant_ids` that are registered."""


class _Answer(NamedTuple):
    revision: Revision
    """The answer has each change up to this revision, and possibly later changes."""
    tenant_status: TenantStatus | None
    router: matching.Router | None
    """None: no subscription was found, as for most pairs of event type and tenant."""

    @property
    def subscriptions(self) -> Mapping[SubscriptionId, Subscription]:
        return {} if self.router is None else self.router.subscriptions

    def matches(self, event: Event) -> list[matching.Match]:
        return [] if self.router is None else self.router.matches(event)


@dataclass(slots=True, kw_only=True)
class _ForAllTenants:
    """The answer for all tenants, and the revisions of answers for single tenants that can be combined with it."""

    answer: _Answer
    unmoved_since: Revision
    """Since this revision, each read of the answer has found all subscriptions of the read before, with the same scopes."""
    current_at: Revision
    """No subscription to all tenants has changed between `answer` and this revision."""
    expires_at: float
    """Time from which on the answer is read again, in seconds of the LookupRegistry's `clock`."""

    def fits(self, naming_the_tenant: _Answer) -> bool:
        """Return True if this answer can be combined with `naming_the_tenant`.

        That is so if no subscription can have moved from one of the two answers to the other unseen.
        """
        return self.unmoved_since <= naming_the_tenant.revision <= self.current_at


class _Answers(NamedTuple):
    """The two answers for one event, as a router. A subscription that is in both matches by the newer answer only."""

    about_everything: _Answer
    naming_the_tenant: _Answer

    def tenant_status(self, _: TenantId) -> TenantStatus | None:
        return self.naming_the_tenant.tenant_status

    def matches(self, event: Event) -> list[matching.Match]:
        older, newer = self
        if older.revision > newer.revision:
            older, newer = newer, older
        known = newer.subscriptions
        outdated = older.matches(event)
        return newer.matches(event) + [match for match in outdated if match.subscription.subscription_id not in known]


class LookupRegistry:
    """A Registry with only the rows that recent events of this process needed.

    A row is read again if an event needs it more than `ttl_s` seconds after it was read. Each of three caches has at most
    `max_answers` entries: answers for an event type and a tenant, answers for an event type and all tenants, and tenants.
    MAX_SHARED_ENDPOINTS bounds the cached endpoints.
    """

    def __init__(
        self, reader: RegistryReader, *, ttl_s: float, max_answers: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._reader = reader
        self._ttl_s = ttl_s
        self._clock = clock
        self._naming_a_tenant: cachetools.TTLCache[tuple[str, TenantId], _Answer] = cachetools.TTLCache(
            maxsize=max_answers, ttl=ttl_s, timer=clock
        )
        # Kept until each answer for a tenant that was combined with it has expired: the next read is compared with it.
        self._for_all_tenants: cachetools.TTLCache[str, _ForAllTenants] = cachetools.TTLCache(
            maxsize=max_answers, ttl=2 * ttl_s, timer=clock
        )
        self._destinations: cachetools.TTLCache[EndpointId, registries.Destination] = cachetools.TTLCache(
            maxsize=MAX_SHARED_ENDPOINTS, ttl=ttl_s, timer=clock
        )
        self._registered: cachetools.TTLCache[TenantId, bool] = cachetools.TTLCache(maxsize=max_answers, ttl=ttl_s, timer=clock)
        self._endpoints: cachetools.LRUCache[EndpointId, Endpoint] = cachetools.LRUCache(maxsize=MAX_SHARED_ENDPOINTS)
        self._seen: deque[tuple[float, Revision]] = deque()
        self._newest_read = Revision(0)
        """Newest revision that `reader` has returned."""
        self._forgotten = 0
        """Number of times that this registry has forgotten all its answers. `_look_up` counts them."""

    @property
    def revision(self) -> Revision:
        """Return the newest revision that was known `ttl_s` seconds ago. No cached answer is of an older revision.

        If the first revision became known less than `ttl_s` seconds ago, return this first revision. If no revision is known,
        return 0.
        """
        since = self._clock() - self._ttl_s
        while len(self._seen) > 1 and self._seen[1][0] <= since:
            self._seen.popleft()
        return self._seen[0][1] if self._seen else Revision(0)

    @property
    def newest(self) -> Revision:
        """Return the newest revision that an answer or a task has brought; 0 if there was none."""
        return self._seen[-1][1] if self._seen else Revision(0)

    def confirm(self, revision: Revision) -> None:
        """Record that all answers read from now on are of `revision` or later."""
        if not self._seen or revision > self._seen[-1][1]:
            self._seen.append((self._clock(), revision))

    async def router_for(self, event: Event) -> _Answers:
        """Return a router made of two answers for the event's type: for all tenants, and for the event's tenant.

        Missing answers are looked up in Postgres. A subscription that a change moved from one answer to the other matches once.

        Each answer was younger than `ttl_s` when it was taken from the cache. The first answer may be older when this method
        returns, because the second look-up may wait for Postgres. If Postgres loses commits between the two answers, both are
        taken again. A lost commit may have moved a subscription, and then neither answer may have the subscription.
        """
        while True:
            forgotten = self._forgotten
            everything = self._for_all_tenants.get(event.event_type)
            if everything is None or everything.expires_at <= self._clock():
                everything = await self._read_for_all_tenants(event.event_type, everything)
            naming = self._naming_a_tenant.get((event.event_type, event.tenant_id))
            if naming is None or not everything.fits(naming):
                naming = await self._read_naming(event.event_type, event.tenant_id, everything)
            if self._forgotten == forgotten:
                return _Answers(everything.answer, naming)

    async def destination(
        self, endpoint_id: EndpointId, tenants: Collection[TenantId], *, read_again: bool = False
    ) -> registries.Destination:
        """Return an endpoint (None: not registered), its subscriptions, and those of `tenants` that are not registered.

        The platform's own tenant always counts as registered. Missing answers are looked up in Postgres. A cached answer is at
        most `ttl_s` seconds old. With `read_again`, look up all answers again, and cache them.
        """
        known = None if read_again else self._destinations.get(endpoint_id)
        if known is None:
            found = await self._look_up(self._reader.endpoint, endpoint_id)
            row = found.endpoints.get(endpoint_id)
            known = registries.Destination(row and self._shared(row), found.subscriptions)
            self._destinations[endpoint_id] = known
        return known._replace(deleted_tenants=await self._deleted(tenants, read_again=read_again))

    def rows_now(
        self, endpoint_id: EndpointId, tenants: Collection[TenantId], deleted: Collection[TenantId] = ()
    ) -> registries.Destination | None:
        """Return the cached answers for an endpoint and tenants. None: the endpoint's answer is not cached.

        A tenant without a cached answer counts as deleted if it is in `deleted`. The cache may lack some tenants of a lease at
        any time, because a lease can have more tenants than `max_answers`.
        """
        known = self._destinations.get(endpoint_id)
        if known is None:
            return None
        deleted = set(deleted)
        return known._replace(
            deleted_tenants=[
                tenant for tenant in tenants if tenant != PLATFORM and not self._registered.get(tenant, tenant not in deleted)
            ]
        )

    async def _deleted(self, tenants: Collection[TenantId], *, read_again: bool) -> list[TenantId]:
        known = {tenant: None if read_again else self._registered.get(tenant) for tenant in tenants if tenant != PLATFORM}
        if unknown := [tenant for tenant, is_registered in known.items() if is_registered is None]:
            found = await self._look_up(self._reader.tenants, unknown)
            answered = {tenant: tenant in found.tenants for tenant in unknown}
            self._registered.update(answered)
            known.update(answered)
        return [tenant for tenant, is_registered in known.items() if not is_registered]

    async def _read_for_all_tenants(self, event_type: str, before: _ForAllTenants | None) -> _ForAllTenants:
        """Read and cache the answer for all tenants. `before` is the previous answer. None: no answer is cached."""
        answer = await self._read(event_type, None, None)
        unmoved_since = answer.revision
        if before is not None and not _has_moved(before.answer.subscriptions, answer.subscriptions):
            unmoved_since = min(before.unmoved_since, answer.revision)  # revisions may fall after a failover of Postgres
        read = _ForAllTenants(
            answer=answer,
            unmoved_since=unmoved_since,
            current_at=answer.revision,
            expires_at=self._clock() + self._ttl_s,
        )
        self._for_all_tenants[event_type] = read
        return read

    async def _read_naming(self, event_type: str, tenant_id: TenantId, everything: _ForAllTenants) -> _Answer:
        """Read and cache the answer for a tenant, with the subscriptions to all tenants that are newer than `everything`.

        If there are newer subscriptions, `everything` expires now. The next event of this type reads it again, so that events
        of other tenants match the newer subscriptions too.
        """
        answer = await self._read(event_type, tenant_id, everything.current_at)
        if any(row.scope.everything for row in answer.subscriptions.values()):
            everything.expires_at = float("-inf")
        else:
            everything.current_at = max(everything.current_at, answer.revision)
        self._naming_a_tenant[event_type, tenant_id] = answer
        return answer

    async def _read(self, event_type: str, tenant_id: TenantId | None, since: Revision | None) -> _Answer:
        found = await self._look_up(self._reader.candidates, event_type, tenant_id, since)
        status = None if tenant_id is None else found.tenants.get(tenant_id)
        return _Answer(found.revision, status, self._router(found) if found.subscriptions else None)

    async def _look_up(self, read: Callable[..., Snapshot], *arguments: Any) -> Snapshot:
        """Return the rows that `read` returns, and record their revision.

        If the revision is below that of an earlier read, or the reader has found a loss, Postgres has failed over and lost
        commits. All cached answers are then forgotten, because they may contain rows of lost commits. They may also lack rows
        of later commits that got the same revisions.
        """
        newest, losses = self._newest_read, self._reader.losses
        # In a thread: requests in flight must not time out while Postgres is slow or unavailable.
        found = await asyncio.to_thread(read, *arguments)
        if found.revision < newest or self._reader.losses != losses:
            for answers in (self._naming_a_tenant, self._for_all_tenants, self._destinations, self._registered, self._seen):
                answers.clear()
            self._newest_read = found.revision
            self._forgotten += 1
        self._newest_read = max(self._newest_read, found.revision)
        self.confirm(found.revision)
        return found

    def _router(self, found: Snapshot) -> matching.Router:
        return matching.Router(replace(found, endpoints={key: self._shared(row) for key, row in found.endpoints.items()}))

    def _shared(self, endpoint: Endpoint) -> Endpoint:
        """Return one object for equal rows of an endpoint. The sender recognises an unchanged endpoint by identity."""
        known = self._endpoints.get(endpoint.endpoint_id)
        if known != endpoint:
            known = self._endpoints[endpoint.endpoint_id] = endpoint
        return known


def _has_moved(before: Mapping[SubscriptionId, Subscription], after: Mapping[SubscriptionId, Subscription]) -> bool:
    """Return True if a subscription of `before` is missing in `after`, or has another scope there."""
    return any(key not in after or after[key].scope != row.scope for key, row in before.items())
