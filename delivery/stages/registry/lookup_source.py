"""Let the executors look up the registry themselves, where `snapshot.source` is "lookup".

Runs on the driver; `LookupSource` is what crosses to the executors. The driver holds nothing of the registry: before each
micro-batch it asks whether Postgres is there, so that a job without it waits between two micro-batches and can be stopped.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import ClassVar

import tenacity
from pyspark import SparkContext

from delivery import errors
from delivery.config import settings, worker_plans
from delivery.model import Revision
from delivery.observability import metrics
from delivery.webhooks.http import guard
from delivery.webhooks.routing import lookup_registry, registries
from subscriptions_db.postgres import connect, migrate
from subscriptions_db.registration import registered_rows
from subscriptions_db.secrets import keyring
from subscriptions_db.snapshot.lookup import PostgresReader


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupSource:
    """What a task gets: how to reach Postgres and open secrets there. Both are SecretStr, so that no repr shows them."""

    REFRESHED: ClassVar[str] = "revision"
    database: settings.Database
    keys: settings.Keys
    guard: guard.Guard
    ttl_s: float
    max_answers: int
    revision: Revision
    """What Postgres was at when the micro-batch began."""

    def registry(self, last: registries.Registry | None) -> registries.Registry:
        """Return this process's answers so far; there is one way to look up in an application."""
        looked_up = last if isinstance(last, lookup_registry.LookupRegistry) else self._new()
        looked_up.confirm(self.revision)
        return looked_up

    def _new(self) -> lookup_registry.LookupRegistry:
        reader = PostgresReader(self.database, keyring.KeyRing.from_settings(self.keys), self.guard)
        return lookup_registry.LookupRegistry(reader, ttl_s=self.ttl_s, max_answers=self.max_answers)


class Lookups:
    """Give each micro-batch the source to look up by, once Postgres has answered."""

    def __init__(self, config: settings.Settings, *, stop: threading.Event) -> None:
        self._ring = keyring.KeyRing.from_settings(config.keys)
        self._config = config
        self._patiently = connect.patiently(stop)
        self._hold_reason: str | None = "the registry was not asked yet"
        self._asked_at = 0.0
        metrics.REGISTRY_CONFIRMED.set_function(self._confirmed_at)

    def source(self, _: SparkContext, lane: str) -> LookupSource | None:  # noqa: ARG002  # to each lane the same
        """Return what the tasks of the next micro-batch get; None when the job is to stop."""
        try:
            revision = self._patiently(self._ask)
        except tenacity.RetryError:
            return None
        metrics.REGISTRY_REVISION.set(revision)
        return LookupSource(
            database=self._config.database,
            keys=self._config.keys,
            guard=worker_plans.guard_of(self._config.delivery),
            ttl_s=self._config.snapshot.lookup_ttl_s,
            max_answers=self._config.snapshot.lookup_max_answers,
            revision=revision,
        )

    def hold_reason(self) -> str | None:
        """Return why a micro-batch is held, None when it is not. Safe from any thread."""
        return self._hold_reason

    def _ask(self) -> Revision:
        try:
            with connect.connect(self._config.database, application_name="fanout job") as connection, connect.translating():
                migrate.require_current(connection)
                if not self._asked_at:
                    keyring.require_fits(connection, self._ring)  # a wrong one is said here, and not by the first task
                revision = Revision(registered_rows.revision(connection))
        except errors.FanoutError as exc:
            self._hold_reason = str(exc)
            raise
        self._hold_reason, self._asked_at = None, time.time()
        return revision

    def _confirmed_at(self) -> float:
        # Without events nobody asks, and nothing grows old either: what is not looked up anew has expired.
        return time.time() if self._hold_reason is None else self._asked_at
