"""Look up the candidate subscriptions of an event in Postgres, and cache the answers.

Runs in the executors. A `Reader` that queries Postgres comes in.

An event needs two answers: the subscriptions to everything, by event type, and those that name its tenant, by type and tenant.
With one answer, each of thousands of tenants would cache a copy of the former. A change of the registry is in effect after
`ttl_s` at the latest, when the answers from before it have expired.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import NamedTuple, Protocol

import cachetools

from delivery.model import PLATFORM, Endpoint, EndpointId, Event, Revision, TenantId, TenantStatus
from delivery.webhooks.routing import matching, registries
from delivery.webhooks.routing.registry_snapshot import Snapshot

MAX_SHARED_ENDPOINTS = 20_000
"""Endpoints whose rows are shared between answers. The requirement is 10,000 and more."""


class Reader(Protocol):
    """Queries Postgres. Called from a thread, never twice at the same time. Waits while Postgres is unavailable."""

    def candidates(self, event_type: str, tenant_id: TenantId | None) -> Snapshot:
        """Return the subscriptions that name the tenant, with the tenant; without a tenant, those to everything.

        Only subscriptions that can match the event type, with their endpoints.
        """

    def endpoint(self, endpoint_id: EndpointId) -> Snapshot:
        """Return the endpoint, if it is registered, and its subscriptions."""

    def tenants(self, tenant_ids: Collection[TenantId]) -> Snapshot:
        """Return those of the tenants that are registered."""


class _Answer(NamedTuple):
    tenant_status: TenantStatus | None
    router: matching.Router | None
    """None: there are no subscriptions. So for most pairs of type and tenant."""


class _Answers(NamedTuple):
    """A router for one event. No subscription is in both answers."""

    about_everything: _Answer
    naming_the_tenant: _Answer

    def tenant_status(self, _: TenantId) -> TenantStatus | None:
        return self.naming_the_tenant.tenant_status

    def matches(self, event: Event) -> list[matching.Match]:
        return [match for answer in self if answer.router is not None for match in answer.router.matches(event)]


class LookupRegistry:
    """The part of the registry that recent events of this process needed."""

    def __init__(self, reader: Reader, *, ttl_s: float, max_answers: int, clock: Callable[[], float] = time.monotonic) -> None:
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
        """Return the newest revision that was known a TTL ago. No cached answer is older. At first: the first known one."""
        since = self._clock() - self._ttl_s
        while len(self._seen) > 1 and self._seen[1][0] <= since:
            self._seen.popleft()
        return self._seen[0][1] if self._seen else Revision(0)

    @property
    def newest(self) -> Revision:
        """Return the newest known revision."""
        return self._seen[-1][1] if self._seen else Revision(0)

    def confirm(self, revision: Revision) -> None:
        """Record that answers from now on are of `revision` or later."""
        if not self._seen or revision > self._seen[-1][1]:
            self._seen.append((self._clock(), revision))

    async def router_for(self, event: Event) -> _Answers:
        """Return a router made of answers that are younger than the TTL. Missing answers are looked up."""
        return _Answers(await self._answer(event.event_type, None), await self._answer(event.event_type, event.tenant_id))

    async def destination(self, endpoint_id: EndpointId, tenants: Collection[TenantId]) -> registries.Destination:
        """Return the endpoint, its subscriptions and the deleted tenants, no older than the TTL."""
        known = self._destinations.get(endpoint_id)
        if known is None:
            found = await asyncio.to_thread(self._reader.endpoint, endpoint_id)
            self.confirm(found.revision)
            row = found.endpoints.get(endpoint_id)
            known = registries.Destination(row and self._shared(row), found.subscriptions)
            self._destinations[endpoint_id] = known
        return known._replace(deleted_tenants=await self._deleted(tenants))

    async def _deleted(self, tenants: Collection[TenantId]) -> list[TenantId]:
        known = {one: self._registered.get(one) for one in tenants if one != PLATFORM}
        if unknown := [one for one, is_registered in known.items() if is_registered is None]:
            found = await asyncio.to_thread(self._reader.tenants, unknown)
            self.confirm(found.revision)
            answered = {one: one in found.tenants for one in unknown}
            self._registered.update(answered)
            known.update(answered)
        return [one for one, is_registered in known.items() if not is_registered]

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
        """Return the one object for equal rows. The sender recognises an unchanged endpoint by identity."""
        known = self._endpoints.get(endpoint.endpoint_id)
        if known != endpoint:
            known = self._endpoints[endpoint.endpoint_id] = endpoint
        return known
