"""Find the subscriptions to which an event is due: by event type, tenant, sub-tenant, exclusions and filter.

Runs in the executors, in the archive, in the API and in `fanout` commands.

Subscriptions of one event type pattern are indexed on first use, by their scope: everything, a tenant or a sub-tenant. Matching
an event then takes at most three look-ups in the index of each pattern, for any number of tenants. Where a look-up finds many
subscriptions, an index of their filters (delivery.webhooks.filters.index) selects those to evaluate. A rule, in the names here,
is a subscription that is prepared for matching.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import cachetools

from delivery.model import Event, SkipReason
from delivery.registry_model import (
    PLATFORM,
    Endpoint,
    Revision,
    Scope,
    Subscription,
    SubscriptionId,
    SubscriptionStatus,
    TenantId,
    TenantStatus,
)
from delivery.webhooks.filters import event_pattern
from delivery.webhooks.filters.index import FilterIndex
from delivery.webhooks.routing import scope_index
from delivery.webhooks.routing.registry_snapshot import Snapshot, SnapshotChanges

MAX_KNOWN_TYPES = 10_000
"""Maximum of event types whose indexes are cached. Producers name event types, so their number has no bound. The platform must
support 500 and more."""
MIN_INDEXED_RULES = 8
"""Minimum of subscriptions of one scope for which an index of their filters is built. With fewer subscriptions the index saves
no time, and most tenants have few."""


class Match(NamedTuple):
    """A subscription to which an event is due, and its endpoint."""

    subscription: Subscription
    endpoint: Endpoint


class _SharedFilter:
    """A filter that the subscriptions of a _PatternIndex share if their filter patterns are equal.

    Compiled on first use: compiling takes 0.1 ms and 4 kB.
    """

    __slots__ = ("_compiled", "pattern")

    def __init__(self, pattern: Mapping[str, Any]) -> None:
        self.pattern = pattern
        self._compiled: event_pattern.Filter | None = None

    def matches(self, document: Mapping[str, Any]) -> bool:
        if self._compiled is None:
            self._compiled = event_pattern.compile_pattern(self.pattern)
        return self._compiled.matches(document)


class _Rule(NamedTuple):
    subscription: Subscription
    filter: _SharedFilter | None
    has_exclusions: bool


class _PatternIndex:
    """The subscriptions of one event type pattern, indexed by scope. No subscription matches an event twice."""

    __slots__ = ("_by_scope", "_everywhere", "_indexed")

    def __init__(self, subscriptions: Iterable[Subscription]) -> None:
        self._by_scope = scope_index.ScopeIndex(
            (key, rule) for rule in _rules(subscriptions) for key in _scope_keys(rule.subscription.scope)
        )
        self._everywhere = self._by_scope.get(None)  # needed by each event
        self._indexed: dict[scope_index.ScopeKey, _IndexedRules] = {}

    def matching(self, event: Event) -> list[_Rule]:
        """Return the rules whose scope includes `event` and whose filter, if any, matches. The caller checks exclusions."""
        tenant_id, sub_tenant_id = event.tenant_id, event.sub_tenant_id
        found: list[_Rule] = []
        document: Mapping[str, Any] | None = None
        keys = (None, tenant_id) if sub_tenant_id is None else (None, tenant_id, (tenant_id, sub_tenant_id))
        # "Everything" means the events of tenants. Operational events go only to subscriptions that name the platform.
        for key in keys if tenant_id != PLATFORM else keys[1:]:
            rules = self._everywhere if key is None else self._by_scope.get(key)
            if len(rules) >= MIN_INDEXED_RULES:
                if key not in self._indexed:
                    self._indexed[key] = _IndexedRules(rules)
                document = document or filter_document(event)
                found += self._indexed[key].matching(document)
                continue
            for rule in rules:
                if rule.filter is None:
                    found.append(rule)
                else:
                    document = document or filter_document(event)
                    if rule.filter.matches(document):
                        found.append(rule)
        return found


class _IndexedRules:
    """The rules of a scope with many rules, indexed by filter. For an event, each distinct filter is evaluated at most once."""

    __slots__ = ("_by_filter", "_index", "_unfiltered")

    def __init__(self, rules: Iterable[_Rule]) -> None:
        self._unfiltered: list[_Rule] = []
        self._by_filter: defaultdict[_SharedFilter, list[_Rule]] = defaultdict(list)
        for rule in rules:
            (self._unfiltered if rule.filter is None else self._by_filter[rule.filter]).append(rule)
        self._index = FilterIndex((shared.pattern, shared) for shared in self._by_filter)

    def matching(self, document: Mapping[str, Any]) -> Iterator[_Rule]:
        yield from self._unfiltered
        for shared in self._index.candidates(document):
            if shared.matches(document):
                yield from self._by_filter[shared]


class Router:
    """Find the matches of events by a snapshot of the registry. `apply` changes the router in place.

    A worker process has one router for the whole registry, or one for each cached look-up that found subscriptions. Not
    thread-safe.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.revision: Revision = snapshot.revision
        self._tenants = dict(snapshot.tenants)
        self.endpoints = dict(snapshot.endpoints)
        self.subscriptions = dict(snapshot.subscriptions)
        self._by_type: defaultdict[str, dict[SubscriptionId, Subscription]] = defaultdict(dict)
        for subscription in self.subscriptions.values():
            self._by_type[subscription.event_type][subscription.subscription_id] = subscription
        self._wildcards = {pattern for pattern in self._by_type if pattern.endswith("*")}
        self._indexes: dict[str, _PatternIndex] = {}
        self._indexes_of_type: cachetools.LRUCache[str, tuple[_PatternIndex, ...]] = cachetools.LRUCache(MAX_KNOWN_TYPES)

    def tenant_status(self, tenant_id: TenantId) -> TenantStatus | None:
        """Return the tenant's status. None: the tenant is not registered."""
        return self._tenants.get(tenant_id)

    def matches(self, event: Event) -> list[Match]:
        """Return every subscription to which `event` is due, each once, with its endpoint.

        Paused and quarantined subscriptions are included, and endpoints of any status. The filter of a quarantined
        subscription is not evaluated.
        """
        return [
            Match(rule.subscription, self.endpoints[rule.subscription.endpoint_id])
            for index in self._indexes_for(event.event_type)
            for rule in index.matching(event)
            if not (rule.has_exclusions and is_excluded(event, rule.subscription))
        ]

    def apply(self, changes: SnapshotChanges) -> None:
        """Apply changes. The router's revision must lie between `changes.since` and `changes.revision`, both included.

        Endpoints and subscriptions that do not differ stay the same objects. The index of an event type pattern stays if no
        subscription with this pattern differs.
        """
        _overlay(self._tenants, changes.tenants)
        _overlay(self.endpoints, changes.endpoints)
        for subscription_id, subscription in changes.subscriptions.items():
            before = self.subscriptions.get(subscription_id)
            if _is_same(before, subscription):
                continue  # a delta has all changes since the base, and most were applied before: their indexes stay
            if before is not None:
                del self.subscriptions[subscription_id]
                del self._by_type[before.event_type][subscription_id]
                self._forget(before.event_type)
            if subscription is not None:
                self.subscriptions[subscription_id] = subscription
                self._by_type[subscription.event_type][subscription_id] = subscription
                self._forget(subscription.event_type)
        self.revision = changes.revision

    def _indexes_for(self, event_type: str) -> tuple[_PatternIndex, ...]:
        indexes = self._indexes_of_type.get(event_type)
        if indexes is None:
            patterns = {event_type, *(pattern for pattern in self._wildcards if event_type.startswith(pattern[:-1]))}
            indexes = tuple(self._index_of(pattern) for pattern in patterns if pattern in self._by_type)
            self._indexes_of_type[event_type] = indexes
        return indexes

    def _index_of(self, pattern: str) -> _PatternIndex:
        if pattern not in self._indexes:
            self._indexes[pattern] = _PatternIndex(self._by_type[pattern].values())
        return self._indexes[pattern]

    def _forget(self, pattern: str) -> None:
        """Drop the indexes that are stale after a change of a subscription with this event type pattern."""
        if not self._by_type[pattern]:
            del self._by_type[pattern]
        self._indexes.pop(pattern, None)
        if not pattern.endswith("*"):
            self._indexes_of_type.pop(pattern, None)
            return
        (self._wildcards.add if pattern in self._by_type else self._wildcards.discard)(pattern)
        for event_type in [known for known in self._indexes_of_type if known.startswith(pattern[:-1])]:
            del self._indexes_of_type[event_type]


def skip_reason(subscription: Subscription) -> SkipReason | None:
    """Return the reason if a subscription's fault or status makes the lanes skip its events. None: neither does.

    A subscription with an unusable row is quarantined, whatever its status, because the lanes cannot choose events without its
    filter. Deliveries to an endpoint with an unusable row are not skipped, but wait (delivery.webhooks.scheduling.deferral).
    """
    if subscription.fault:
        return SkipReason.QUARANTINED
    if subscription.status is SubscriptionStatus.PAUSED:
        return SkipReason.SUBSCRIPTION_PAUSED
    return None


def filter_document(event: Event) -> Mapping[str, Any]:
    """Return the document for filter patterns: the event's attributes, and its payload below `data`.

    Attributes that have no field in Event, such as `subject`, keep their names. The name of such an attribute has no `_`, and
    is not `id`, `type`, `source`, `time` or `data`. So no two members of the document have the same name.
    """
    document = {
        "id": event.event_id,
        "type": event.event_type,
        "source": event.source,
        "tenant_id": event.tenant_id,
        "sub_tenant_id": event.sub_tenant_id,
        "time": event.time,
        "data": event.content,
    }
    return dict(event.attributes) | document if event.attributes else document


def _rules(subscriptions: Iterable[Subscription]) -> Iterator[_Rule]:
    shared: dict[str, _SharedFilter] = {}
    for subscription in subscriptions:
        has_exclusions = bool(subscription.scope.without_tenants or subscription.scope.without_sub_tenants)
        # A quarantined filter cannot be evaluated. So all events of its scope are due, and are recorded as skipped.
        pattern = None if subscription.fault else subscription.filter_pattern
        if pattern is None:
            yield _Rule(subscription, None, has_exclusions)
        else:
            yield _Rule(subscription, shared.setdefault(_text(pattern), _SharedFilter(pattern)), has_exclusions)


def _text(pattern: Mapping[str, Any] | None) -> str:
    """Return a filter pattern as text. Two patterns are the same if their texts are equal.

    Comparing the patterns by `==` would not do, because `true` equals 1 in Python.
    """
    return json.dumps(pattern, sort_keys=True)


def _is_same(before: Subscription | None, after: Subscription | None) -> bool:
    if before is None or after is None or before != after:
        return before is after
    return after.filter_pattern is None or _text(before.filter_pattern) == _text(after.filter_pattern)


def _scope_keys(scope: Scope) -> Iterator[scope_index.ScopeKey]:
    if scope.everything:
        yield None
        return
    yield from scope.tenants
    included = set(scope.tenants)
    # A sub-tenant of an included tenant is found by the tenant.
    yield from (key for key in scope.sub_tenants if key[0] not in included)


def takes_type(pattern: str, event_type: str) -> bool:
    """Return True if `pattern` matches an event type. The pattern is an exact type, or a prefix wildcard such as `order.*`."""
    return event_type.startswith(pattern[:-1]) if pattern.endswith("*") else event_type == pattern


def is_excluded(event: Event, subscription: Subscription) -> bool:
    """Return True if the subscription excludes the event's tenant or sub-tenant."""
    scope = subscription.scope
    return event.tenant_id in scope.without_tenants or (
        event.sub_tenant_id is not None and (event.tenant_id, event.sub_tenant_id) in scope.without_sub_tenants
    )


def _overlay(rows: dict[Any, Any], changed: Mapping[Any, Any]) -> None:
    for key, row in changed.items():
        if row is None:
            rows.pop(key, None)
        elif rows.get(key) != row:  # else the object stays: the sender recognises an unchanged endpoint by identity
            rows[key] = row
