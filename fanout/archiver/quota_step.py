"""Look for reached quotas between two writes, in a bounded share of the archiver's time.

Runs in `fanout archive`. A failed look is logged and tried again later, and archiving continues. If the look has lost the
connection to Postgres, the archive pauses.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Callable

from delivery import errors
from delivery.config import settings
from delivery.observability import metrics
from subscriptions_db.archive.notifications import quotas
from subscriptions_db.archive.notifications.endpoint_health import Policy
from subscriptions_db.postgres import connect

log = logging.getLogger(__name__)

SHARE = 0.02
"""Largest share of the time for looks at quotas, because archiving waits meanwhile. A look took 1.3 to 2.5 s with 10,000
customers and a million dead letters of 10 days, on a shared machine of two cores. So such looks are two to three minutes
apart."""


class QuotaLooks:
    """Look for reached quotas when a look is due."""

    def __init__(
        self, defaults: quotas.DefaultQuotas, policy: Policy | None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock` returns seconds. Without a policy there are no operational events."""
        self._defaults = defaults
        self._policy = policy
        self._clock = clock
        self._due_at = 0.0
        self._failure: str | None = None
        """Why the last look failed; None: it succeeded, or there was none."""

    def run(self, connection: connect.Connection) -> None:
        """Look for reached quotas if a look is due, and set the metric. Call at each maintenance run.

        A failed look is logged, unless the one before failed for the same reason, and leaves the metric as it was. A look
        that took n seconds is due again n / SHARE seconds after its begin. Raise RegistryUnavailable only if a new connection
        is needed.
        """
        began = self._clock()
        if began < self._due_at:
            return
        try:
            reached = quotas.record(connection, self._defaults, self._policy, now=dt.datetime.now(dt.UTC))
        except errors.RegistryUnavailable as exc:
            if connect.needs_replacement(connection, exc):
                raise
            self._log(str(exc))
        else:
            self._failure = None
            for quota in quotas.Quota:
                metrics.ARCHIVE_QUOTAS.labels(quota.value).set(reached.get(quota, 0))
        finally:
            self._due_at = began + (self._clock() - began) / SHARE

    def _log(self, reason: str) -> None:
        if reason == self._failure:
            return
        self._failure = reason
        log.warning(
            "the archive cannot look for reached quotas: %s. Archiving continues, and the archive looks again later. Until "
            "then no further reached quota is reported, and none refuses replays. If a right is missing, grant the rights of "
            "docs/operations.md. A statement of a look may take %.0f s: if that is too short, run `vacuum` on dead_letters, or "
            "lower `api.max_dead_letters_per_customer`",
            reason,
            quotas.LOOK_TIMEOUT_S,
        )


def defaults_of(config: settings.Settings) -> quotas.DefaultQuotas:
    """Return the quotas of customers and tenants that have no quotas of their own."""
    api = config.api
    return quotas.DefaultQuotas(
        endpoints=api.max_endpoints_per_customer,
        subscriptions=api.max_subscriptions_per_customer,
        consumers=api.max_consumers_per_customer,
        dead_letters=api.max_dead_letters_per_customer,
        events_per_day=api.max_tenant_events_per_day,
    )
