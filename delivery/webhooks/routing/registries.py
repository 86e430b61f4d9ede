"""What delivering asks of the registry, wherever it is kept, and the registry that is wholly in this process.

Runs in the executors. Must not import pyspark or psycopg. The other registry is delivery.webhooks.routing.lookup_registry;
decision 7 (docs/adr/0007-broadcast-or-look-up.md) says which is better when.
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
    """Say what is to be done with an event. Never waits."""

    def tenant_status(self, tenant_id: TenantId) -> TenantStatus | None:
        """Return the tenant's status, or None when the registry does not know it."""

    def matches(self, event: Event) -> list[matching.Match]:
        """Return every subscription to which `event` is due, each once, paused and quarantined ones included."""


class Destination(NamedTuple):
    """An endpoint as it is now, the subscriptions that may lead to it, and which of the tenants asked for there is no more."""

    endpoint: Endpoint | None
    """None: it is not registered."""
    subscriptions: Mapping[SubscriptionId, Subscription]
    """Each that leads to it is in here; others may be."""
    deleted_tenants: Collection[TenantId] = ()


class Registry(Protocol):
    """The registry as one worker process has it. Kept from micro-batch to micro-batch."""

    @property
    def revision(self) -> Revision:
        """Every change up to this revision is in effect."""

    @property
    def newest(self) -> Revision:
        """No change after this revision is in effect."""

    async def router_for(self, event: Event) -> Router:
        """Return a router that knows all that `event` can be due to. May wait for Postgres; deliveries go on meanwhile."""

    async def destination(self, endpoint_id: EndpointId, tenants: Collection[TenantId]) -> Destination:
        """Return what events of these tenants that have waited for an endpoint are sent by. May wait for Postgres as well."""


class Source(Protocol):
    """Where a worker finds the registry: what a task brings with it. Survives pickling."""

    def registry(self, last: Registry | None) -> Registry:
        """Return `last`, this process's registry so far, brought to this source's revision; a new one where it cannot be."""


class RefreshedSource(Source, Protocol):
    """A source of which one field, named here, is renewed with each micro-batch. A dataclass."""

    REFRESHED: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]


class WholeRegistry:
    """All of the registry, in memory: a full snapshot, and what has changed since."""

    def __init__(self, base_id: str, base: Snapshot) -> None:
        self.base_id = base_id
        self._router = matching.Router(base)

    @property
    def revision(self) -> Revision:
        """Return the one revision by which everything is routed."""
        return self._router.revision

    @property
    def newest(self) -> Revision:
        """Return the same."""
        return self.revision

    async def router_for(self, _: Event) -> matching.Router:
        """Return the one router, at once."""
        return self._router

    async def destination(self, endpoint_id: EndpointId, tenants: Collection[TenantId]) -> Destination:
        """Return the endpoint and all subscriptions, at once."""
        router = self._router
        deleted = [one for one in tenants if router.tenant_status(one) is None and one != PLATFORM]
        return Destination(router.endpoints.get(endpoint_id), router.subscriptions, deleted)

    def advance(self, changes: SnapshotChanges | None) -> None:
        """Take all that has changed since the base.

        A task that Spark runs again may bring older changes than this worker has seen; the newer ones stay.
        """
        if changes is not None and changes.revision > self.revision:
            self._router.apply(changes)


class Broadcast(Protocol):
    """Spark's handle to a value that was sent to each executor once."""

    @property
    def value(self) -> bytes:
        """Return the value.

        PySpark lets go of it in a worker that gets a task without this handle, such as one of a lane's state, and loads it
        again, asked or not, for the next task with it. So it is no more than bytes.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastSource:
    """What a task gets: a handle to the broadcast, and the delta by value.

    It stands here and not beside the driver's code that makes it, because a worker that unpickles it imports its module:
    psycopg and pydantic would take 26 MB of each worker.
    """

    REFRESHED: ClassVar[str] = "delta"
    base_id: str
    """Which broadcast it is; the same for all sources that differ in `delta` only."""
    broadcast: Broadcast
    """The base, packed: a process unpacks it once, though it may load it in each micro-batch."""
    delta: SnapshotChanges | None
    """All that has changed since the broadcast."""

    def registry(self, last: Registry | None) -> Registry:
        """Return `last` with the delta applied, or a new one when there is a new broadcast."""
        if not isinstance(last, WholeRegistry) or last.base_id != self.base_id:
            last = WholeRegistry(self.base_id, pickling.unpacked(self.broadcast.value))
            # It stays for long and holds no cycles: the collector need not walk through it again and again.
            gc.collect()
            gc.freeze()
        last.advance(self.delta)
        return last
