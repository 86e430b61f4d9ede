"""Answer the executors' look-ups from Postgres.

A look-up reads one endpoint with its subscriptions, some tenants, or the subscriptions that can match one event.

Runs in the executors if `snapshot.source` is "lookup". Then executors have the database's URL and the key ring. Decision 7
(docs/adr/0007-broadcast-or-look-up.md) describes the consequences.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import logging
from collections.abc import Callable, Collection
from typing import NamedTuple

from delivery import errors
from delivery.config import settings
from delivery.registry_model import EndpointId, Revision, TenantId
from delivery.webhooks.http import guard
from delivery.webhooks.routing.registry_snapshot import Snapshot
from subscriptions_db.postgres import connect, row_security
from subscriptions_db.secrets import keyring
from subscriptions_db.snapshot import registry_reader

log = logging.getLogger(__name__)


class _LastChange(NamedTuple):
    revision: Revision
    changed_at: dt.datetime | None
    """When the change was made, by Postgres's clock. None: there was no change yet."""


class PostgresReader:
    """Answer look-ups over one connection, which the first look-up opens. After an error, the next look-up opens a new one.

    Also find out if Postgres has lost commits in a failover, as the follower of a broadcast registry does: the log of changes
    must have the revision of the last answer, with the same time. The newest revision alone would miss some losses. A standby
    that lacks the last changes may continue with a higher revision. Or it gives the number of a lost revision to another
    change, which has another time.
    """

    def __init__(self, database: settings.DatabaseSettings, ring: keyring.KeyRing, address_guard: guard.Guard) -> None:
        self._database = database
        self._ring = ring
        self._guard = address_guard
        self._open = contextlib.ExitStack()
        self._connection: connect.Connection | None = None
        self._losses = 0
        self._last: _LastChange | None = None
        """The newest change that an answer had. None: there was no answer."""
        self._has_checked = False
        """True if the log had `_last` when this connection looked for it."""
        self._patiently = connect.retry_until_available("The deliveries of this look-up wait")

    @property
    def losses(self) -> int:
        """Return the number of look-ups that found lost commits. Postgres had returned these commits in an earlier answer."""
        return self._losses

    def candidates(self, event_type: str, tenant_id: TenantId | None, since: Revision | None = None) -> Snapshot:
        """Return the subscriptions that match an event type, with their endpoints: those about a tenant, or about all tenants.

        1. `tenant_id` given: return the subscriptions whose scope includes, by id, the tenant or a sub-tenant of it. With
           `since`, also return the subscriptions to all tenants (`Scope.everything`) that changed after this revision. The
           snapshot also has the tenant if it is registered. Each scope contains only the part about this tenant.
        2. `tenant_id` None: return all subscriptions to all tenants. `since` is ignored.

        Waits for Postgres without a time limit: an event without a look-up can neither be delivered nor skipped. If the task
        failed instead of waiting, Spark would repeat its deliveries, and in the end stop the job.
        """
        read = functools.partial(registry_reader.read_candidates, event_type=event_type, tenant_id=tenant_id, since=since)
        whose = "all tenants" if tenant_id is None else f"tenant {tenant_id}"
        return self._patiently(self._read, read, f"event type {event_type} of {whose}")

    def endpoint(self, endpoint_id: EndpointId) -> Snapshot:
        """Return an endpoint, if it is registered, and its subscriptions. Waits for Postgres without a time limit."""
        read = functools.partial(registry_reader.read_endpoint, endpoint_id=endpoint_id)
        return self._patiently(self._read, read, f"endpoint {endpoint_id}")

    def tenants(self, tenant_ids: Collection[TenantId]) -> Snapshot:
        """Return the tenants in `tenant_ids` that are registered. Waits for Postgres without a time limit."""
        wanted = f"tenants ({len(tenant_ids)})"
        return self._patiently(self._read, lambda connection, *_: registry_reader.read_tenants(connection, tenant_ids), wanted)

    def _read(self, read: Callable[[connect.Connection, keyring.KeyRing, guard.Guard], Snapshot], wanted: str) -> Snapshot:
        if self._connection is None:
            with contextlib.ExitStack() as opening:
                opened = opening.enter_context(connect.connect(self._database, application_name="fanout look-up"))
                row_security.require_all_customers(opened)
                self._connection, self._open = opened, opening.pop_all()
        try:
            return self._checked(self._connection, read(self._connection, self._ring, self._guard))
        except (errors.RegistryUnavailable, errors.RegistryOutdated):
            self.close()
            raise
        except Exception as exc:
            # An unexpected error is not the event's fault. If it were raised, the event would be rejected.
            self.close()
            log.exception(
                "a look-up of %s in the registry failed by an unforeseen error. The look-up is repeated, and its events wait. "
                "If this is logged again, send this traceback to the maintainers of the platform",
                wanted,
            )
            raise errors.RegistryUnavailable(
                f"a look-up of {wanted} in the registry failed unexpectedly ({type(exc).__name__}), and is repeated. If this "
                "is logged again, send the traceback in the log to the maintainers of the platform"
            ) from exc

    def _checked(self, connection: connect.Connection, answer: Snapshot) -> Snapshot:
        """Return the answer. Count a loss if the log of changes lacks the newest change of the last answer.

        Postgres is not asked if the answer came over the same connection as the last answer, with the same revision.
        """
        last, newest = self._last, answer.revision
        if self._has_checked and last is not None and last.revision == newest:
            return answer
        if last is not None and last.revision:
            with connect.translated_errors():
                is_known = registry_reader.revisions(connection, *last).reach_back
            if not is_known:
                self._losses += 1
                log.warning(
                    "the log of changes in Postgres lacks revision %d, which an earlier look-up had found. Postgres lost "
                    "commits in a failover, or more than a million changes followed. This worker forgets its answers, and "
                    "looks the rows up again. After a failover, register again what is missing (docs/disaster-recovery.md)",
                    last.revision,
                )
        self._last = _LastChange(newest, registry_reader.changed_at(connection, newest))
        self._has_checked = True
        return answer

    def close(self) -> None:
        """Close the connection; the next look-up opens a new one."""
        self._connection, self._has_checked = None, False
        self._open.close()
