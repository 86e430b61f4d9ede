"""Follow the registry while the job runs: read the whole registry at the start, and then its changes.

Runs on the driver, on a thread of its own. The delta is all changes since the last full snapshot. A new full snapshot is read
when the log of changes in Postgres lacks the driver's revision. It is also read when the delta exceeds REBASE_ROWS or
REBASE_BYTES, but at most once in REBASE_EVERY_S unless the delta is much larger (MAX_EXCESS). So the cost of a change depends
on the size of the change, not on the size of the registry.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable

import tenacity

from delivery import errors
from delivery.config import plan_builder, settings
from delivery.observability import metrics
from delivery.webhooks.routing import published_registry
from delivery.webhooks.routing.published_registry import Published
from delivery.webhooks.routing.registry_snapshot import Snapshot, SnapshotChanges
from delivery.webhooks.state import pickling
from subscriptions_db.postgres import connect, migrate, row_security
from subscriptions_db.postgres.sql import query
from subscriptions_db.secrets import keyring
from subscriptions_db.snapshot import registry_reader as registry

log = logging.getLogger(__name__)

REBASE_ROWS = 2_000
"""Number of changed rows in the delta above which the driver broadcasts a new snapshot. Each task receives the delta."""
REBASE_BYTES = 4 * 1024 * 1024
"""Bytes of the pickled delta above which the driver broadcasts a new snapshot: 900 endpoints with client certificates, or four
subscriptions to 10,000 tenants with long ids. REBASE_ROWS endpoints without certificates have 0.6 MB."""
REBASE_EVERY_S = 60.0
"""Shortest time between two snapshots, in seconds, while the delta is at most MAX_EXCESS times its limit. Each worker and the
batch lane need seconds for a new snapshot, and a customer could cause many by changing some large rows again and again."""
MAX_EXCESS = 10
"""Multiple of REBASE_ROWS or REBASE_BYTES above which a new snapshot does not wait for REBASE_EVERY_S."""
WARN_EVERY_S = 60.0
"""Seconds between two warnings that delivery is paused for the same cause. While delivery is paused, each lane asks for the
registry every `snapshot.poll_interval_s`, and without this limit each request would log a warning."""


_NOT_WARNED = (None, float("-inf"))


class Follower:
    """Keep the newest registry: read all of it at the start, then only the changes, until a new snapshot is needed.

    The changes are read when Postgres notifies the connection, and at the latest every `snapshot.poll_interval_s`.

    A thread of its own reads, so a slow or absent Postgres delays no micro-batch until the registry is older than
    `snapshot.max_age_s`. Then, and before the first read, `current` waits. The registry changes only to whole revisions: an
    interrupted read changes nothing.
    """

    def __init__(
        self,
        config: settings.Settings,
        *,
        stop: threading.Event,
        clock: Callable[[], float] = time.monotonic,
        half_open_ms: int = connect.HALF_OPEN_MS,
    ) -> None:
        """`half_open_ms` are the milliseconds without a TCP acknowledgement after which a connection is replaced."""
        self._database = config.database
        self._half_open_ms = half_open_ms
        self._snapshot = config.snapshot
        self._ring = keyring.KeyRing.from_settings(config.keys)
        self._guard = plan_builder.guard_of(config.delivery)
        self._stop = stop
        self._clock = clock
        self._published: Published | None = None
        self._excess = 0.0
        """Size of the published delta as a multiple of its limit: the larger of rows / REBASE_ROWS and bytes / REBASE_BYTES."""
        self._rebased_at = float("-inf")
        """When a snapshot last replaced another, by `clock`."""
        self._refused: errors.SettingsError | None = None
        self._failure: str | None = None
        """Error of the last read; None: the last read succeeded, or none has ended."""
        self._warned: tuple[str | None, float] = _NOT_WARNED
        """`_failure` at the last warning that delivery is paused, and the time of that warning."""
        self._base_faults: dict[str, str] = {}
        self._faults: dict[str, str] = {}
        self._confirmed = threading.Condition()
        self._thread = threading.Thread(target=self._follow, name="registry", daemon=True)

    def start(self) -> None:
        """Start the thread that reads the registry."""
        self._thread.start()

    def current(self) -> Published | None:
        """Return the registry that Postgres confirmed at most `snapshot.max_age_s` ago. None: the job is asked to stop.

        Wait without limit until there is such a registry. So the lanes wait here before the first read, and while Postgres has
        not answered for longer than `snapshot.max_age_s`. Raise SettingsError if `database.url` is no URL, or the key ring does
        not fit the registry.
        """
        with self._confirmed:
            while not self._stop.is_set():
                if self._refused is not None:
                    raise self._refused
                reason = self.pause_reason()
                if reason is None:
                    return self._published
                if self._published is not None:
                    self._warn(reason)
                self._confirmed.wait(timeout=self._snapshot.poll_interval_s)
        return None

    def _warn(self, reason: str) -> None:
        """Log that delivery is paused, once for all lanes together: when the cause changes, and again after WARN_EVERY_S.

        The cause is `_failure`. `reason` is not compared, because it contains the age of the registry, which differs each
        second. The caller holds the lock.
        """
        now, (cause, at) = self._clock(), self._warned
        if cause != self._failure or now - at >= WARN_EVERY_S:
            self._warned = (self._failure, now)
            log.warning(
                "delivery is paused: %s. The registry is older than snapshot.max_age_s permits, so events wait in Kafka. "
                "Delivery resumes by itself when the registry can be read again: do what the reason says, or check Postgres",
                reason,
            )  # fmt: skip

    @property
    def newest(self) -> Published | None:
        """Return the newest registry, of any age; None if no registry has been read yet. Thread-safe."""
        return self._published

    def pause_reason(self) -> str | None:
        """Return why the lanes are paused: no registry was read, or Postgres has not confirmed it for `snapshot.max_age_s`.

        None: the lanes are not paused. Thread-safe.
        """
        published = self._published
        if published is None:
            return "the registry has not been read yet" + self._cause()
        age_s = self._clock() - published.confirmed_at
        if age_s <= self._snapshot.max_age_s:
            return None
        return f"the registry was last confirmed {age_s:.0f} s ago" + (self._cause() or ": check Postgres")

    def _cause(self) -> str:
        return f": {self._failure}" if self._failure else ""

    def _follow(self) -> None:
        patiently = connect.retry_until_available(
            "The lanes continue with the last snapshot, if there is one, until its age is snapshot.max_age_s. Else they wait",
            self._stop,
        )
        while not self._stop.is_set():
            try:
                patiently(self._follow_one_connection)
            except tenacity.RetryError:
                return  # asked to stop
            except errors.SettingsError as refused:
                with self._confirmed:
                    self._refused = refused
                    self._confirmed.notify_all()
                return
            except Exception:  # the thread must survive, or the job would silently deliver by an ageing registry
                log.exception(
                    "the registry could not be read: delivery continues by the last snapshot, if there is one, for up to "
                    "snapshot.max_age_s, and a retry follows in %.0f s. If this is logged again, send the traceback to the "
                    "maintainers of the platform", self._snapshot.poll_interval_s,
                )  # fmt: skip
                self._stop.wait(self._snapshot.poll_interval_s)

    def _follow_one_connection(self) -> None:
        """Read changes over one connection until it breaks or the job stops; keep the reason of a break for `pause_reason`."""
        try:
            self._read_changes()
        except errors.FanoutError as exc:
            self._failure = str(exc)
            raise

    def _read_changes(self) -> None:
        opened = connect.connect(self._database, application_name="fanout job", half_open_ms=self._half_open_ms)
        with opened as connection, connect.translated_errors():
            migrate.require_current(connection)
            if self._published is None:
                keyring.require_fits(connection, self._ring)
            connection.execute(query("listen"))
            while not self._stop.is_set():
                self._refresh(connection)
                for _ in connection.notifies(timeout=self._snapshot.poll_interval_s, stop_after=1):
                    pass

    def _refresh(self, connection: connect.Connection) -> None:
        published = self._published
        if published is not None:
            changes = registry.read_changes(
                connection, self._ring, self._guard, since=published.revision, since_at=published.changed_at
            )
            if changes is not None:
                row_security.require_all_customers(connection)  # after the read: the role may be granted at any time
                is_newer = changes.revision != published.revision
                changed_at = registry.changed_at(connection, changes.revision) if is_newer else None
                advanced = published_registry.advanced(published, changes, self._clock(), changed_at=changed_at)
                self._publish(advanced)  # a full read may take many seconds, and the changes take effect meanwhile
                if is_newer:
                    self._excess = _excess(advanced.changes)
                if not _needs_snapshot(self._excess, self._clock() - self._rebased_at):
                    return
        base = registry.read_full(connection, self._ring, self._guard)
        row_security.require_all_customers(connection)
        changed_at = registry.changed_at(connection, base.revision)
        self._publish(
            Published(base_id=uuid.uuid4().hex, base=base, changes=None, confirmed_at=self._clock(), changed_at=changed_at)
        )
        self._excess = 0.0
        if published is not None:
            self._rebased_at = self._clock()

    def _publish(self, published: Published) -> None:
        before = self._published
        with self._confirmed:
            self._published, self._failure, self._warned = published, None, _NOT_WARNED
            self._confirmed.notify_all()
        metrics.REGISTRY_CONFIRMED.labels("driver").set_to_current_time()
        metrics.REGISTRY_REVISION.set(published.revision)
        if before is None or before.base_id != published.base_id:
            self._base_faults = published.base.quarantined()
            _log_base(published.base)
        elif published.revision != before.revision:
            log.info(
                "the job routes by registry revision %d: %d rows changed since the broadcast",
                published.revision,
                len(published.changes or ()),
            )
        else:
            return
        self._report(published)

    def _report(self, published: Published) -> None:
        for kind, size in published.sizes().items():
            metrics.REGISTRY_ROWS.labels(kind).set(size)
        current = self._base_faults | ({} if published.changes is None else published.changes.faults())
        before, self._faults = self._faults, {row: fault for row, fault in current.items() if fault}
        metrics.REGISTRY_QUARANTINED.set(len(self._faults))
        for row, fault in self._faults.items() - before.items():
            log.warning(
                "quarantined: %s: %s. Deliveries to a quarantined endpoint wait, and events of a quarantined subscription are "
                "skipped. Do what the fault says, or else correct the row with `fanout apply`. After a change of keys.ring, "
                "restart the job",
                row, fault,
            )  # fmt: skip


def _excess(changes: SnapshotChanges | None) -> float:
    if changes is None:
        return 0.0
    return max(len(changes) / REBASE_ROWS, pickling.size(changes) / REBASE_BYTES)


def _needs_snapshot(excess: float, age_s: float) -> bool:
    """Return True if a new snapshot must replace the present snapshot and its delta.

    `excess` is the size of the delta as a multiple of its limit, REBASE_ROWS or REBASE_BYTES. `age_s` is the number of seconds
    since a snapshot last replaced another.
    """
    return excess > MAX_EXCESS or (excess > 1 and age_s >= REBASE_EVERY_S)


def _log_base(base: Snapshot) -> None:
    log.info(
        "the job routes by registry revision %d: %d tenants, %d endpoints, %d subscriptions",
        base.revision,
        len(base.tenants),
        len(base.endpoints),
        len(base.subscriptions),
    )
