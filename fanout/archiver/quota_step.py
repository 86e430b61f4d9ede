"""Check the quotas between two writes, in a bounded share of the archiver's time.

Runs in `fanout archive`. A failed check is logged and tried again later, and archiving continues. If the check has lost the
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
"""Largest share of the archiver's time for checks of the quotas, because archiving waits for them. A check took 1.3 to 2.5 s
with 10,000 customers and a million dead letters of 10 days, on a shared machine of two cores. Checks of this length are two to
three minutes apart, because a check begins at a maintenance run only."""


class QuotaLooks:
    """Check the quotas when a check is due."""

    def __init__(
        self,
        defaults: quotas.DefaultQuotas,
        policy: Policy | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        look_timeout_s: float = quotas.LOOK_TIMEOUT_S,
    ) -> None:
        """`clock` returns seconds. `policy` None: there are no operational events.

        `look_timeout_s` bounds each statement of a check.
        """
        self._defaults = defaults
        self._policy = policy
        self._clock = clock
        self._look_timeout_s = look_timeout_s
        self._due_at = 0.0
        self._failure: str | None = None
        """The reason why the last check failed; None: it succeeded, or there was none."""

    def run(self, connection: connect.Connection) -> None:
        """Check the quotas if a check is due, and set the metric of reached quotas. Called at each maintenance run.

        A failed check leaves the metric as it was. The failure is logged, unless the previous check failed for the same reason.
        The next check is due n / SHARE seconds after the beginning of a check that took n seconds. Raise
        RegistryUnavailable only if a new connection is needed, and RegistryOutdated if a table is missing.
        """
        began = self._clock()
        if began < self._due_at:
            return
        try:
            reached = quotas.record(
                connection,
                self._defaults,
                self._policy,
                now=dt.datetime.now(dt.UTC),
                look_timeout_s=self._look_timeout_s,
            )
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
            "the archive cannot check the quotas: %s. Archiving continues, and the archive checks again later. Until then, a "
            "newly reached quota is not reported and refuses no replays. If a right is missing, grant the rights of "
            "docs/operations.md. A statement of the check may take %.0f s, or database.statement_timeout_s if that is shorter. "
            "If that is too short, run `vacuum` on dead_letters, or lower `api.max_dead_letters_per_customer`",
            reason,
            self._look_timeout_s,
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
