"""Answer the executors' look-ups from Postgres: what one event type, or one tenant's events of it, can be due to.

Runs in the executors, when `snapshot.source` is "lookup". So the database's URL and the key ring are there as well: what that
means is said in decision 7 (docs/adr/0007-broadcast-or-look-up.md).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection

from delivery import errors
from delivery.config import settings
from delivery.model import EndpointId, TenantId
from delivery.webhooks.http import guard
from delivery.webhooks.routing.registry_snapshot import Snapshot
from subscriptions_db.postgres import connect
from subscriptions_db.secrets import keyring
from subscriptions_db.snapshot import registry_reader


class PostgresReader:
    """Read over one connection: made when first needed, kept, and made anew after it broke."""

    def __init__(self, database: settings.Database, ring: keyring.KeyRing, address_guard: guard.Guard) -> None:
        self._database = database
        self._ring = ring
        self._guard = address_guard
        self._open = contextlib.ExitStack()
        self._connection: connect.Connection | None = None
        self._patiently = connect.patiently()

    def candidates(self, event_type: str, tenant_id: TenantId | None) -> Snapshot:
        """Return what can match, and wait for Postgres as long as it takes.

        An event that cannot be looked up can neither be delivered nor skipped. Failing the task instead would send again what
        it had sent, and in the end stop the job.
        """
        read = functools.partial(registry_reader.read_candidates, event_type=event_type, tenant_id=tenant_id)
        return self._patiently(self._read, read)

    def endpoint(self, endpoint_id: EndpointId) -> Snapshot:
        """Return an endpoint and the subscriptions that lead to it, and wait as long."""
        return self._patiently(self._read, functools.partial(registry_reader.read_endpoint, endpoint_id=endpoint_id))

    def tenants(self, tenant_ids: Collection[TenantId]) -> Snapshot:
        """Return those of the tenants that are registered, and wait as long."""
        return self._patiently(self._read, lambda connection, *_: registry_reader.read_tenants(connection, tenant_ids))

    def _read(self, read: Callable[[connect.Connection, keyring.KeyRing, guard.Guard], Snapshot]) -> Snapshot:
        if self._connection is None:
            self._connection = self._open.enter_context(connect.connect(self._database, application_name="fanout look-up"))
        try:
            return read(self._connection, self._ring, self._guard)
        except (errors.RegistryUnavailable, errors.RegistryOutdated):
            self.close()
            raise
        except Exception as exc:
            # Whatever it is, it is no fault of the event: raised, it would have it rejected.
            self.close()
            raise errors.RegistryUnavailable(f"a look-up failed in an unforeseen way ({type(exc).__name__})") from exc

    def close(self) -> None:
        """Close the connection; the next look-up makes a new one."""
        self._connection = None
        self._open.close()
