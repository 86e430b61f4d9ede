"""Define the interface of a worker's registry, and implement the registry that is wholly in memory.

Runs in the executors, and in the archive for replays. The driver makes the sources from which workers get their registry.
delivery.webhooks.routing.lookup_registry has the other implementation, which looks rows up in Postgres. Decision 7
(docs/adr/0007-broadcast-or-look-up.md) compares both.
"""

from __future__ import annotations

import gc
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

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
from delivery.webhooks.routing import matching
from delivery.webhooks.routing.registry_snapshot import Snapshot, SnapshotChanges
from delivery.webhooks.state import pickling


class EventRouter(Protocol):
    """Finds the subscriptions to which an event is due. Never waits."""

    def tenant_status(self, tenant_id: TenantId) -> TenantStatus | None:
        """Return the tenant's status. None: the tenant is not registered."""

    def matches(self, event: Event) -> list[matching.Match]:
        """Return every subscription to which `event` is due, each once, with its endpoint.

        Paused and quarantined subscriptions are included, and endpoints of any status. The filter of a quarantined
        subscription is not evaluated.
        """


class Destination(NamedTuple):
    """The present rows of an endpoint and its subscriptions, and the deleted tenants: they decide which events are sent."""

    endpoint: Endpoint | None
    """None: the endpoint is not registered any more."""
    subscriptions: Mapping[SubscriptionId, Subscription]
    """Subscriptions by id: all subscriptions of the endpoint, and possibly subscriptions of other endpoints."""
    deleted_tenants: Collection[TenantId] = ()
    """Tenants of the stored events that are not registered any more."""


class Registry(Protocol):
    """The registry as one worker process has it. Kept from micro-batch to micro-batch."""

    @property
    def revision(self) -> Revision:
        """Return the revision up to which every change is in effect."""

    @property
    def newest(self) -> Revision:
        """Return the newest revision whose change may be in effect already.

        With look-ups, this revision may be newer than `revision`: some rows are newer than others.
        """

    async def router_for(self, event: Event) -> EventRouter:
        """Return a router with all subscriptions that can match `event`. May wait for Postgres; requests in flight go on."""

    async def destination(
        self, endpoint_id: EndpointId, tenants: Collection[TenantId], *, read_again: bool = False
    ) -> Destination:
        """Return the rows of an endpoint and its subscriptions, and the ids in `tenants` that are not registered.

        May wait for Postgres.

        With `read_again`, use no cached answer, because a cached answer may be older than the answer by which an event was
        routed.
        """

    def rows_now(
        self, endpoint_id: EndpointId, tenants: Collection[TenantId], deleted: Collection[TenantId] = ()
    ) -> Destination | None:
        """Return what `destination` returns, without waiting. None: the endpoint has to be looked up.

        `deleted` are the tenants that `destination` returned as deleted for the same `tenants`. A tenant that would have to be
        looked up counts as deleted only if it is in `deleted`.
        """


class RegistrySource(Protocol):
    """Gives a worker process its registry. Each task gets a source from the driver, so a source can be pickled."""

    def registry(self, last: Registry | None) -> Registry:
        """Return the registry of this process for a task.

        Update `last`, the registry that the process had before, and return it. If `last` cannot be updated, or is None, return
        a new registry.
        """


class RefreshedSource(RegistrySource, Protocol):
    """A source that is a dataclass. The field that REFRESHED names gets a new value for each micro-batch."""

    REFRESHED: ClassVar[str]
    """Name of the field that changes."""
    __dataclass_fields__: ClassVar[dict[str, Any]]


class WholeRegistry:
    """The whole registry in memory: the snapshot `base`, updated with later changes.

    `base_id` identifies `base`. Empty: the registry is never updated, as for replays.
    """

    def __init__(self, base_id: str, base: Snapshot) -> None:
        self.base_id = base_id
        self._router = matching.Router(base)

    @property
    def revision(self) -> Revision:
        """Return the revision of this registry: all changes up to this revision are in effect, and no later ones."""
        return self._router.revision

    @property
    def newest(self) -> Revision:
        """Return the same revision as `revision`, because the whole registry is at one revision."""
        return self.revision

    async def router_for(self, _: Event) -> matching.Router:
        """Return the router, without waiting."""
        return self._router

    async def destination(
        self,
        endpoint_id: EndpointId,
        tenants: Collection[TenantId],
        *,
        read_again: bool = False,  # noqa: ARG002  # the registry has no cached answers
    ) -> Destination:
        """Return the endpoint, the subscriptions and the unregistered tenants, as `rows_now` does. Does not wait."""
        return self.rows_now(endpoint_id, tenants)

    def rows_now(
        self,
        endpoint_id: EndpointId,
        tenants: Collection[TenantId],
        deleted: Collection[TenantId] = (),  # noqa: ARG002  # no tenant has to be looked up
    ) -> Destination:
        """Return the endpoint, the subscriptions of all endpoints, and the tenants among `tenants` that are not registered.

        Later changes of the registry appear in the returned subscriptions, which are no copy. The platform's own tenant always
        counts as registered.
        """
        router = self._router
        gone = [tenant for tenant in tenants if router.tenant_status(tenant) is None and tenant != PLATFORM]
        return Destination(router.endpoints.get(endpoint_id), router.subscriptions, gone)

    def advance(self, changes: SnapshotChanges | None) -> None:
        """Apply the changes since the base snapshot. None: there are none.

        A task that Spark runs again may bring older changes than this worker has. Changes that end at or before the revision
        of this registry are ignored.
        """
        if changes is not None and changes.revision > self.revision:
            self._router.apply(changes)


class Broadcast(Protocol):
    """Spark's handle to a value that each executor gets once."""

    @property
    def value(self) -> bytes:
        """Return the value, as bytes, because bytes load fastest.

        A worker keeps the value only while its tasks use this broadcast. When it runs another task, such as one that updates
        the batch lane's state, PySpark drops the value. PySpark loads the value again for the next task that uses the
        broadcast, even if the task never reads the value.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastSource:
    """The source of a WholeRegistry: a handle to the broadcast snapshot (the base), and the changes since then (the delta).

    This module must not import psycopg or pydantic. A worker that unpickles a source imports this module, and these two
    packages would take 26 MB of each worker.
    """

    REFRESHED: ClassVar[str] = "delta"
    base_id: str
    """Id of the broadcast. Sources that differ only in `delta` have the same id."""
    broadcast: Broadcast
    """The base snapshot, pickled. A process unpickles it once, though the process may load the bytes in each micro-batch."""
    delta: SnapshotChanges | None
    """The changes since the base snapshot. None: there are none."""

    def registry(self, last: Registry | None) -> Registry:
        """Apply `delta` to `last`, and return `last`. A delta that is not newer than `last` changes nothing.

        If `last` is None, of another broadcast or of another class, return a new registry: the base snapshot with `delta`. Then
        also collect garbage, and freeze all present objects (gc.freeze), so that later collections skip them. Only the rare
        full collection of `lanes.gc_tuning` examines them again.
        """
        if not isinstance(last, WholeRegistry) or last.base_id != self.base_id:
            last = WholeRegistry(self.base_id, pickling.unpacked(self.broadcast.value))
            # The base is long-lived and has no cycles. Freezing it spares each later collection the walk through it.
            gc.collect()
            gc.freeze()
        last.advance(self.delta)
        return last
