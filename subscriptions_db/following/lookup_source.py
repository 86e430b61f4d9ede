"""Let the executors read the registry from Postgres themselves, if `snapshot.source` is "lookup".

Runs on the driver; `LookupSource` travels to the executors. The executors ask Postgres which subscriptions an event may match,
and cache the answers for `snapshot.lookup_ttl_s`. The driver keeps nothing of the registry. Before each micro-batch the driver
checks that Postgres answers. So a job without Postgres waits between two micro-batches, where it can be stopped.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import ClassVar

import tenacity

from delivery import errors
from delivery.config import plan_builder, settings
from delivery.observability import metrics
from delivery.registry_model import Revision
from delivery.webhooks.http import guard
from delivery.webhooks.routing import lookup_registry, registries
from subscriptions_db.postgres import connect, migrate
from subscriptions_db.registration import registered_rows
from subscriptions_db.secrets import keyring
from subscriptions_db.snapshot.lookup import PostgresReader


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupSource:
    """The settings with which a task looks up the registry in Postgres. No repr shows the secrets in `database` and `keys`."""

    REFRESHED: ClassVar[str] = "revision"
    """The name of the field that gets a new value for each micro-batch (registries.py)."""
    database: settings.DatabaseSettings
    keys: settings.KeysSettings
    """The key ring that opens customers' secrets."""
    guard: guard.Guard
    """The rules by which a row with a forbidden address or header is quarantined."""
    ttl_s: float
    """Seconds for which a worker uses an answer, the setting `snapshot.lookup_ttl_s`."""
    max_answers: int
    """Most answers that a worker keeps, the setting `snapshot.lookup_max_answers`."""
    revision: Revision
    """The registry's revision when the micro-batch started."""

    def registry(self, last: registries.Registry | None) -> registries.Registry:
        """Return the registry for a task: `last` with its cached answers, or a new registry if `last` is no LookupRegistry.

        `last` is the registry of the last task in this process. None: there was no task. The returned registry records that
        Postgres has reached `revision`, so that every later answer of Postgres is of this revision or a later one.
        """
        looked_up = last if isinstance(last, lookup_registry.LookupRegistry) else self._new()
        looked_up.confirm(self.revision)
        return looked_up

    def _new(self) -> lookup_registry.LookupRegistry:
        reader = PostgresReader(self.database, keyring.KeyRing.from_settings(self.keys), self.guard)
        return lookup_registry.LookupRegistry(reader, ttl_s=self.ttl_s, max_answers=self.max_answers)


class Lookups:
    """Give each micro-batch a LookupSource, once Postgres has answered. For jobs with `snapshot.source` = "lookup"."""

    follower = None
    """The driver does not follow the registry."""

    def __init__(self, config: settings.Settings, *, stop: threading.Event) -> None:
        self._ring = keyring.KeyRing.from_settings(config.keys)
        self._config = config
        self._patiently = connect.retry_until_available("Micro-batches wait", stop)
        self._pause_reason: str | None = "the registry has not been read yet"
        self._asked_at = 0.0

    def source(self, context: object, lane: str) -> LookupSource | None:  # noqa: ARG002  # the same for each lane
        """Wait until Postgres answers and has all migrations, and return the source for the tasks of the next micro-batch.

        None: the job was asked to stop before Postgres was ready. `context` and `lane` are unused. Raise SettingsError if
        `database.url` is no URL, or if the key ring does not fit the registry. The key ring is checked until this method has
        succeeded once.
        """
        try:
            revision = self._patiently(self._ask)
        except tenacity.RetryError:
            return None
        metrics.REGISTRY_REVISION.set(revision)
        return LookupSource(
            database=self._config.database,
            keys=self._config.keys,
            guard=plan_builder.guard_of(self._config.delivery),
            ttl_s=self._config.snapshot.lookup_ttl_s,
            max_answers=self._config.snapshot.lookup_max_answers,
            revision=revision,
        )

    def pause_reason(self) -> str | None:
        """Return why the lanes are paused: the error of the last request to Postgres. None: the request succeeded. Thread-safe.

        Before the first request ends, the text says that the registry has not been read yet.
        """
        return self._pause_reason

    def _ask(self) -> Revision:
        try:
            with (
                connect.connect(self._config.database, application_name="fanout job") as connection,
                connect.translated_errors(),
            ):
                migrate.require_current(connection)
                if not self._asked_at:
                    keyring.require_fits(connection, self._ring)  # report a wrong key here, not in the first task
                revision = Revision(registered_rows.revision(connection))
        except errors.FanoutError as exc:
            self._pause_reason = str(exc)
            raise
        self._pause_reason, self._asked_at = None, time.time()
        metrics.REGISTRY_CONFIRMED.labels("driver").set_function(self._confirmed_at)
        return revision

    def _confirmed_at(self) -> float:
        # Without events there are no look-ups, and no answer is used beyond its time to live. So the age counts as 0.
        return time.time() if self._pause_reason is None else self._asked_at
