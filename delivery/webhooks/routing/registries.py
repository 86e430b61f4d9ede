"""Define what delivery needs of a registry, and implement the registry that is wholly in memory.

Runs in the executors. The other implementation is delivery.webhooks.routing.lookup_registry. Decision 7
(docs/adr/0007-broadcast-or-look-up.md) compares the two.
"""

from __future__ import annotations

import gc
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from delivery.model import PLATFORM, Endpoint, EndpointId, Event, Revision, Subscription, SubscriptionId, TenantId, TenantStatus
from delivery.webhooks.routing import matching
from delivery.webhooks.routing.registry_snapshot import Snapshot, SnapshotChanges
from delivery.webhooks.state import pickling


class Router(Protocol):
    """Finds the subscriptions of events. Never waits."""

    def tenant_status(self, tenant_id: TenantId) -> TenantStatus | None:
        """Return the tenant's status. None: the tenant is not registered."""

    def matches(self, event: Event) -> list[matching.Match]:
        """Return every subscription to which `event` is due, each once, paused and quarantined ones included."""


class Destination(NamedTuple):
    """An endpoint as it is registered now, with its subscriptions and the deleted tenants."""

    endpoint: Endpoint | None
    """None: it is not registered."""
    subscriptions: Mapping[SubscriptionId, Subscription]
    """Every subscription of the endpoint. Others may be there too."""
    deleted_tenants: Collection[TenantId] = ()
    """Those of the tenants in question that are not registered any more."""


class Registry(Protocol):
    """The registry of one worker process. Kept from micro-batch to micro-batch."""

    @property
    def revision(self) -> Revision:
        """Every change up to this revision is in effect."""

    @property
    def newest(self) -> Revision:
        """No change after this revision is in effect."""

    async def router_for(self, event: Event) -> Router:
        """Return a router with all subscriptions that can match `event`. May wait for Postgres, without stopping deliveries."""

    async def destination(self, endpoint_id: EndpointId, tenants: Collection[TenantId]) -> Destination:
        """Return the present destination for stored events of these tenants. May wait for Postgres."""


class Source(Protocol):
    """Gives a worker its registry. A task brings it along, so it can be pickled."""

    def registry(self, last: Registry | None) -> Registry:
        """Return this process's registry at this source's revision: `last`, updated, or a new one where that is impossible."""


class RefreshedSource(Source, Protocol):
    """A source with one field, named here, that changes with each micro-batch. A dataclass."""

    REFRESHED: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]


class WholeRegistry:
    """The whole registry, in memory: a full snapshot, updated with later changes."""

    def __init__(self, base_id: str, base: Snapshot) -> None:
        self.base_id = base_id
        self._router = matching.Router(base)

    @property
    def revision(self) -> Revision:
        """Return the revision by which all events are routed."""
        return self._router.revision

    @property
    def newest(self) -> Revision:
        """Return the same revision."""
        return self.revision

    async def router_for(self, _: Event) -> matching.Router:
        """Return the router, without waiting."""
        return self._router

    async def destination(self, endpoint_id: EndpointId, tenants: Collection[TenantId]) -> Destination:
        """Return the endpoint and all subscriptions, without waiting."""
        router = self._router
        deleted = [one for one in tenants if router.tenant_status(one) is None and one != PLATFORM]
        return Destination(router.endpoints.get(endpoint_id), router.subscriptions, deleted)

    def advance(self, changes: SnapshotChanges | None) -> None:
        """Apply the changes since the base.

        A task that Spark runs again may bring older changes than this worker has. They are ignored.
        """
        if changes is not None and changes.revision > self.revision:
            self._router.apply(changes)


class Broadcast(Protocol):
    """Spark's handle to a value that each executor gets once."""

    @property
    def value(self) -> bytes:
        """Return the value, as bytes.

        PySpark drops the value in a worker that gets a task without this handle, such as a task of a lane's state. It loads the
        value again for the next task with the handle, needed or not. Bytes load fastest.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastSource:
    """The source of a WholeRegistry: a handle to the broadcast base, and the delta by value.

    It is not in the driver's module that makes it, because a worker that unpickles it imports its module. There, psycopg and
    pydantic would take 26 MB of each worker.
    """

    REFRESHED: ClassVar[str] = "delta"
    base_id: str
    """Id of the broadcast. Sources that differ in `delta` only have the same."""
    broadcast: Broadcast
    """The base, pickled. A process unpickles it once, though it may load the bytes in each micro-batch."""
    delta: SnapshotChanges | None
    """The changes since the broadcast."""

    def registry(self, last: Registry | None) -> Registry:
        """Return `last` with the delta applied. A new broadcast makes a new registry."""
        if not isinstance(last, WholeRegistry) or last.base_id != self.base_id:
            last = WholeRegistry(self.base_id, pickling.unpacked(self.broadcast.value))
            # The base is long-lived and has no cycles. Freezing it spares each later collection the walk through it.
            gc.collect()
            gc.freeze()
        last.advance(self.delta)
        return last
