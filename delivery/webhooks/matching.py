"""Decide to whom an event is due: event type, tenant, sub-tenant, exclusions, filter.

Runs in the executors (and in whoever wants to explain a match). Must not import pyspark or psycopg.

The subscriptions that can match an event type are indexed when that type is first seen, by the narrowest thing that
decides: everything, the tenant, or the sub-tenant. A match is then three look-ups, however many tenants there are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import cachetools

from delivery.model import (
    Endpoint,
    EndpointStatus,
    Event,
    Revision,
    Scope,
    SkipReason,
    Subscription,
    SubscriptionId,
    SubscriptionStatus,
    SubTenantId,
    TenantId,
    TenantStatus,
)
from delivery.webhooks import filters, scope_index
from delivery.webhooks.snapshot import Snapshot, SnapshotChanges

MAX_INDEXED_TYPES = 10_000
"""Event types are named by producers, so their number has no bound of its own. The mission names 500 and more."""


class Match(NamedTuple):
    """One subscription to which an event is due."""

    subscription: Subscription
    endpoint: Endpoint


class _Rule(NamedTuple):
    subscription: Subscription
    filter: filters.Filter | None
    has_exclusions: bool


class _TypeIndex:
    """The subscriptions that can match one event type. No event meets the same one twice."""

    __slots__ = ("_by_scope",)

    def __init__(self, rules: Iterator[_Rule]) -> None:
        self._by_scope = scope_index.ScopeIndex((key, rule) for rule in rules for key in _scope_keys(rule.subscription.scope))

    def candidates(self, tenant_id: TenantId, sub_tenant_id: SubTenantId | None) -> Iterator[_Rule]:
        yield from self._by_scope.get(None)
        yield from self._by_scope.get(tenant_id)
        if sub_tenant_id is not None:
            yield from self._by_scope.get((tenant_id, sub_tenant_id))


class Router:
    """Route events by a snapshot; take later changes in place. One for each worker process; not safe between threads."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.revision: Revision = snapshot.revision
        self._tenants = dict(snapshot.tenants)
        self._endpoints = dict(snapshot.endpoints)
        self._subscriptions = dict(snapshot.subscriptions)
        self._by_type: defaultdict[str, dict[SubscriptionId, Subscription]] = defaultdict(dict)
        for subscription in self._subscriptions.values():
            self._by_type[subscription.event_type][subscription.subscription_id] = subscription
        self._wildcards = {pattern for pattern in self._by_type if pattern.endswith("*")}
        self._indexes: cachetools.LRUCache[str, _TypeIndex] = cachetools.LRUCache(maxsize=MAX_INDEXED_TYPES)

    def tenant_status(self, tenant_id: TenantId) -> TenantStatus | None:
        """Return the tenant's status, or None when the registry does not know it."""
        return self._tenants.get(tenant_id)

    def matches(self, event: Event) -> list[Match]:
        """Return every subscription to which `event` is due, each once, paused and quarantined ones included."""
        index = self._indexes.get(event.event_type)
        if index is None:
            index = self._indexes[event.event_type] = _TypeIndex(self._rules_for(event.event_type))
        found: list[Match] = []
        document: Mapping[str, Any] | None = None
        for rule in index.candidates(event.tenant_id, event.sub_tenant_id):
            if rule.has_exclusions and _is_excluded(event, rule.subscription):
                continue
            if rule.filter is not None:
                document = document or filter_document(event)
                if not rule.filter.matches(document):
                    continue
            found.append(Match(rule.subscription, self._endpoints[rule.subscription.endpoint_id]))
        return found

    def apply(self, changes: SnapshotChanges) -> None:
        """Take changes that begin at or before this router's revision; older ones that it already has do no harm."""
        _overlay(self._tenants, changes.tenants)
        _overlay(self._endpoints, changes.endpoints)
        for subscription_id, subscription in changes.subscriptions.items():
            before = self._subscriptions.get(subscription_id)
            if before == subscription:
                continue  # a delta holds all since the base, and most of it was taken before: its indexes are to stay
            if before is not None:
                del self._subscriptions[subscription_id]
                del self._by_type[before.event_type][subscription_id]
                self._forget(before.event_type)
            if subscription is not None:
                self._subscriptions[subscription_id] = subscription
                self._by_type[subscription.event_type][subscription_id] = subscription
                self._forget(subscription.event_type)
        self.revision = changes.revision

    def _rules_for(self, event_type: str) -> Iterator[_Rule]:
        patterns = [event_type, *(pattern for pattern in self._wildcards if event_type.startswith(pattern[:-1]))]
        for pattern in patterns:
            for subscription in self._by_type.get(pattern, {}).values():
                yield _rule(subscription)

    def _forget(self, pattern: str) -> None:
        """Drop the indexes that a change to a subscription with this event type pattern makes stale."""
        if not self._by_type[pattern]:
            del self._by_type[pattern]
        if not pattern.endswith("*"):
            self._indexes.pop(pattern, None)
            return
        (self._wildcards.add if pattern in self._by_type else self._wildcards.discard)(pattern)
        for event_type in [known for known in self._indexes if known.startswith(pattern[:-1])]:
            del self._indexes[event_type]


def skip_reason(match: Match) -> SkipReason | None:
    """Return why a due delivery is not attempted, or None when it is.

    1. A row that cannot be used is quarantined, whatever its status says.
    2. The subscription's status comes before its endpoint's: it is the narrower switch.
    """
    if match.subscription.fault or match.endpoint.fault:
        return SkipReason.QUARANTINED
    if match.subscription.status is SubscriptionStatus.PAUSED:
        return SkipReason.SUBSCRIPTION_PAUSED
    if match.endpoint.status is EndpointStatus.PAUSED:
        return SkipReason.ENDPOINT_PAUSED
    if match.endpoint.status is EndpointStatus.DISABLED:
        return SkipReason.ENDPOINT_DISABLED
    return None


def filter_document(event: Event) -> Mapping[str, Any]:
    """Return what filter patterns are matched on: the event's attributes, and its payload below `data`."""
    return {
        "id": event.event_id,
        "type": event.event_type,
        "source": event.source,
        "tenant_id": event.tenant_id,
        "sub_tenant_id": event.sub_tenant_id,
        "time": event.time,
        "data": event.content,
    }


def _rule(subscription: Subscription) -> _Rule:
    # A quarantined filter cannot be asked, so all events of its scope are due, and end as skipped: none goes unseen.
    pattern = None if subscription.fault else subscription.filter_pattern
    scope = subscription.scope
    return _Rule(
        subscription,
        None if pattern is None else filters.compile_pattern(pattern),
        bool(scope.without_tenants or scope.without_sub_tenants),
    )


def _scope_keys(scope: Scope) -> Iterator[scope_index.ScopeKey]:
    if scope.everything:
        yield None
        return
    yield from scope.tenants
    # Where the whole tenant is included, its key leads here already.
    yield from (key for key in scope.sub_tenants if key[0] not in scope.tenants)


def _is_excluded(event: Event, subscription: Subscription) -> bool:
    scope = subscription.scope
    return event.tenant_id in scope.without_tenants or (
        event.sub_tenant_id is not None and (event.tenant_id, event.sub_tenant_id) in scope.without_sub_tenants
    )


def _overlay(rows: dict[Any, Any], changed: Mapping[Any, Any]) -> None:
    for key, row in changed.items():
        if row is None:
            rows.pop(key, None)
        elif rows.get(key) != row:  # else the known object stays: the sender knows an unchanged endpoint by it
            rows[key] = row
