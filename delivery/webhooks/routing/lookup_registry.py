"""Look up the candidate subscriptions of an event in Postgres, and cache the answers.

Runs in the executors. The caller passes a RegistryReader, which queries Postgres. An answer is the result of one query.

An event needs two answers:
1. The subscriptions to all tenants, by event type.
2. The subscriptions that name the event's tenant, by event type and tenant.
A single answer would store the subscriptions to all tenants again for each of thousands of tenants. A change of the registry is
in effect after `ttl_s` at the latest, when all older answers have expired.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import NamedTuple, Protocol

import cachetools

from delivery.model import Event
from delivery.registry_model import PLATFORM, Endpoint, EndpointId, Revision, TenantId, TenantStatus
from delivery.webhooks.routing import matching, registries
from delivery.webhooks.routing.registry_snapshot import Snapshot

MAX_SHARED_ENDPOINTS = 20_000
"""Maximum of endpoints whose rows are shared between answers, and of cached destinations. The requirement is 10,000 endpoints
and more."""


class RegistryReader(Protocol):
    """Queries Postgres. Called from a thread, never twice at the same time. Waits while Postgres is unavailable."""

    def candidates(self, event_type: str, tenant_id: TenantId | None) -> Snapshot:
        """Return the subscriptions that can match the event type and that name the tenant; with their endpoints and the tenant.

        `tenant_id` None: return the subscriptions to all tenants that can match the event type, with their endpoints.
        """

    def endpoint(self, endpoint_id: EndpointId) -> Snapshot:
        """Return the endpoint, if it is registered, and all subscriptions of the endpoint."""

    def tenants(self, tenant_ids: Collection[TenantId]) -> Snapshot:
        """Return the tenants of `tenant_ids` that are registered."""


class _Answer(NamedTuple):
    tenant_status: TenantStatus | None
    router: matching.Router | None
    """None: no subscription was found, as for most pairs of event type and tenant."""


class _Answers(NamedTuple):
    """The two answers for one event, as a router. No subscription is in both answers."""

    about_everything: _Answer
    naming_the_tenant: _Answer

    def tenant_status(self, _: TenantId) -> TenantStatus | None:
        return self.naming_the_tenant.tenant_status

    def matches(self, event: Event) -> list[matching.Match]:
        return [match for answer in self if answer.router is not None for match in answer.router.matches(event)]


class LookupRegistry:
    """A Registry with only the rows that recent events of this process needed.

    A row is read again if an event needs it more than `ttl_s` seconds after it was read. `max_answers` is the maximum of
    cached answers for events, and also of cached tenants. MAX_SHARED_ENDPOINTS bounds the cached endpoints.
    """

    def __init__(
        self, reader: RegistryReader, *, ttl_s: float, max_answers: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._reader = reader
        self._ttl_s = ttl_s
        self._clock = clock
        self._answers: cachetools.TTLCache[tuple[str, TenantId | None], _Answer] = cachetools.TTLCache(
            maxsize=max_answers, ttl=ttl_s, timer=clock
        )
        self._destinations: cachetools.TTLCache[EndpointId, registries.Destination] = cachetools.TTLCache(
            maxsize=MAX_SHARED_ENDPOINTS, ttl=ttl_s, timer=clock
        )
        self._registered: cachetools.TTLCache[TenantId, bool] = cachetools.TTLCache(maxsize=max_answers, ttl=ttl_s, timer=clock)
        self._endpoints: cachetools.LRUCache[EndpointId, Endpoint] = cachetools.LRUCache(maxsize=MAX_SHARED_ENDPOINTS)
        self._seen: deque[tuple[float, Revision]] = deque()

    @property
    def revision(self) -> Revision:
        """Return the newest revision that was known `ttl_s` seconds ago. No cached answer is of an older revision.

        While no revision has been known for `ttl_s` seconds: the first known revision, or 0 if none is known.
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

        Missing answers are looked up in Postgres.

        Each answer was younger than `ttl_s` when it was taken from the cache. The first answer may be older when this method
        returns, because the second look-up may wait for Postgres.
        """
        return _Answers(await self._answer(event.event_type, None), await self._answer(event.event_type, event.tenant_id))

    async def destination(
        self, endpoint_id: EndpointId, tenants: Collection[TenantId], *, read_again: bool = False
    ) -> registries.Destination:
        """Return an endpoint, its subscriptions, and the tenants among `tenants` that are not registered.

        The platform's own tenant always counts as registered. Missing answers are looked up in Postgres. A cached answer is at
        most `ttl_s` seconds old. `read_again`: look all answers up, and cache them.
        """
        known = None if read_again else self._destinations.get(endpoint_id)
        if known is None:
            found = await asyncio.to_thread(self._reader.endpoint, endpoint_id)
            self.confirm(found.revision)
            row = found.endpoints.get(endpoint_id)
            known = registries.Destination(row and self._shared(row), found.subscriptions)
            self._destinations[endpoint_id] = known
        return known._replace(deleted_tenants=await self._deleted(tenants, read_again=read_again))

    def rows_now(self, endpoint_id: EndpointId, tenants: Collection[TenantId]) -> registries.Destination | None:
        """Return the cached answers for an endpoint and tenants. None: one of these answers is not cached."""
        known = self._destinations.get(endpoint_id)
        registered = {tenant: self._registered.get(tenant) for tenant in tenants if tenant != PLATFORM}
        if known is None or None in registered.values():
            return None
        return known._replace(deleted_tenants=[tenant for tenant, is_registered in registered.items() if not is_registered])

    async def _deleted(self, tenants: Collection[TenantId], *, read_again: bool) -> list[TenantId]:
        known = {tenant: None if read_again else self._registered.get(tenant) for tenant in tenants if tenant != PLATFORM}
        if unknown := [tenant for tenant, is_registered in known.items() if is_registered is None]:
            found = await asyncio.to_thread(self._reader.tenants, unknown)
            self.confirm(found.revision)
            answered = {tenant: tenant in found.tenants for tenant in unknown}
            self._registered.update(answered)
            known.update(answered)
        return [tenant for tenant, is_registered in known.items() if not is_registered]

    async def _answer(self, event_type: str, tenant_id: TenantId | None) -> _Answer:
        key = (event_type, tenant_id)
        answer = self._answers.get(key)
        if answer is None:
            # In a thread: requests in flight must not time out while Postgres is slow or unavailable.
            found = await asyncio.to_thread(self._reader.candidates, event_type, tenant_id)
            self.confirm(found.revision)
            status = None if tenant_id is None else found.tenants.get(tenant_id)
            answer = _Answer(status, self._router(found) if found.subscriptions else None)
            self._answers[key] = answer
        return answer

    def _router(self, found: Snapshot) -> matching.Router:
        return matching.Router(replace(found, endpoints={key: self._shared(row) for key, row in found.endpoints.items()}))

    def _shared(self, endpoint: Endpoint) -> Endpoint:
        """Return one object for equal rows of an endpoint. The sender recognises an unchanged endpoint by identity."""
        known = self._endpoints.get(endpoint.endpoint_id)
        if known != endpoint:
            known = self._endpoints[endpoint.endpoint_id] = endpoint
        return known
