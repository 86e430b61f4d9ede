"""Answer the executors' look-ups from Postgres: what one event type, or one tenant's events of it, can be due to.

Runs in the executors, when `snapshot.source` is "lookup". So the database's URL and the key ring are there as well: what that
means is said in decision 7 (docs/adr/0007-broadcast-or-look-up.md).
"""

from __future__ import annotations

import contextlib

from delivery import errors, settings
from delivery.model import TenantId
from delivery.webhooks import guard
from delivery.webhooks.snapshot import Snapshot
from subscriptions_db import connect, keyring, snapshot


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
        return self._patiently(self._candidates, event_type, tenant_id)

    def _candidates(self, event_type: str, tenant_id: TenantId | None) -> Snapshot:
        if self._connection is None:
            self._connection = self._open.enter_context(connect.connect(self._database, application_name="fanout look-up"))
        try:
            return snapshot.read_candidates(
                self._connection, self._ring, self._guard, event_type=event_type, tenant_id=tenant_id
            )
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
