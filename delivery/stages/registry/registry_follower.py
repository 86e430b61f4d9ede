"""Follow the registry while the job runs, and broadcast it to the executors.

Runs on the driver; delivery.webhooks.routing.registries.BroadcastSource travels to the executors. The driver broadcasts a full
snapshot once. Later changes travel with each micro-batch as a small delta. The driver broadcasts a new snapshot when the delta
has more than REBASE_ROWS rows. It also does so when the log of changes in Postgres lacks the driver's revision. So the cost of
a change depends on the size of the change, not on the size of the registry.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import logging
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import tenacity
from pyspark import Broadcast, SparkContext

from delivery import errors
from delivery.config import plan_builder, settings
from delivery.observability import metrics
from delivery.registry_model import Revision
from delivery.webhooks.routing import registries
from delivery.webhooks.routing.registry_snapshot import Snapshot, SnapshotChanges
from delivery.webhooks.state import pickling
from subscriptions_db.postgres import connect, migrate, row_security
from subscriptions_db.postgres.sql import query
from subscriptions_db.secrets import keyring
from subscriptions_db.snapshot import registry_reader as registry

log = logging.getLogger(__name__)

REBASE_ROWS = 2_000
"""Number of changed rows in the delta above which the driver broadcasts a new snapshot. Each task receives the delta."""
WARN_EVERY_S = 60.0
"""Seconds between two warnings that delivery is paused for the same cause. While it is paused, each lane asks every
`snapshot.poll_interval_s`, and each request could log a warning."""


_NOT_WARNED = (None, float("-inf"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The registry as the driver knows it: a full snapshot, and all later changes as a delta."""

    base_id: str
    """A random id of the full snapshot."""
    base: Snapshot
    changes: SnapshotChanges | None
    """All changes since the full snapshot; None: there are none."""
    confirmed_at: float
    """When Postgres last confirmed that nothing else has changed; monotonic seconds."""
    changed_at: dt.datetime | None = None
    """When the change with this revision was made, by Postgres's clock. If Postgres loses a change, another change may get the
    same revision: the two times differ. None: unknown, or there was no change."""

    @property
    def revision(self) -> Revision:
        """Return the revision of the registry with all changes."""
        return self.base.revision if self.changes is None else self.changes.revision

    def sizes(self) -> dict[str, int]:
        """Return the number of rows by kind (`tenants`, `endpoints`, `subscriptions`), changes included."""
        sizes = {}
        for kind in ("tenants", "endpoints", "subscriptions"):
            rows, changed = getattr(self.base, kind), {} if self.changes is None else getattr(self.changes, kind)
            sizes[kind] = len(rows) + sum((row is not None) - (row_id in rows) for row_id, row in changed.items())
        return sizes


def advanced(published: Published, changes: SnapshotChanges, now: float, *, changed_at: dt.datetime | None = None) -> Published:
    """Return `published` with later changes of the registry merged into its delta, confirmed at `now`. Pure.

    `changed_at` is the time of the last change.
    """
    if changes.revision == published.revision:
        return dataclasses.replace(published, confirmed_at=now)
    merged = changes if published.changes is None else published.changes.followed_by(changes)
    return dataclasses.replace(published, changes=merged, confirmed_at=now, changed_at=changed_at)


class Follower:
    """Keep the newest registry: read all of it at the start, then only the changes, until a new snapshot is needed.

    The changes are read when Postgres notifies the connection, and at the latest every `snapshot.poll_interval_s`.

    A thread of its own reads, so that a slow or absent Postgres never delays a micro-batch. The registry changes only
    to whole revisions: an interrupted read changes nothing.
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
        """Log that delivery is paused: once for all lanes, when the cause changes, and again after WARN_EVERY_S.

        `reason` has the age of the registry, so it differs each second. The caller holds the lock.
        """
        now, (cause, at) = self._clock(), self._warned
        if cause != self._failure or now - at >= WARN_EVERY_S:
            self._warned = (self._failure, now)
            log.warning(
                "delivery is paused: %s. More than snapshot.max_age_s has passed since, and events wait in Kafka. "
                "Delivery resumes when the registry can be read again: do what the reason says, or check Postgres", reason,
            )  # fmt: skip

    @property
    def newest(self) -> Published | None:
        """The newest registry, of any age; None: none has been read yet. Thread-safe."""
        return self._published

    def pause_reason(self) -> str | None:
        """Return why the lanes are paused: no registry was read, or it is older than `snapshot.max_age_s`. None: neither.

        Thread-safe.
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
        patiently = connect.retry_until_available(self._stop)
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
        if published is not None and len(published.changes or ()) <= REBASE_ROWS:
            changes = registry.read_changes(
                connection, self._ring, self._guard, since=published.revision, since_at=published.changed_at
            )
            if changes is not None:
                row_security.require_all_customers(connection)  # after the read: the role may be granted at any time
                is_newer = changes.revision != published.revision
                changed_at = registry.changed_at(connection, changes.revision) if is_newer else None
                self._publish(advanced(published, changes, self._clock(), changed_at=changed_at))
                return
        base = registry.read_full(connection, self._ring, self._guard)
        row_security.require_all_customers(connection)
        changed_at = registry.changed_at(connection, base.revision)
        self._publish(
            Published(base_id=uuid.uuid4().hex, base=base, changes=None, confirmed_at=self._clock(), changed_at=changed_at)
        )

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
                "skipped. Correct the row with `fanout apply`. If a key is missing, add it to keys.ring, and restart the job",
                row, fault,
            )  # fmt: skip


def _log_base(base: Snapshot) -> None:
    log.info(
        "the job routes by registry revision %d: %d tenants, %d endpoints, %d subscriptions",
        base.revision,
        len(base.tenants),
        len(base.endpoints),
        len(base.subscriptions),
    )


class Broadcaster:
    """Broadcast each full snapshot once for all lanes, and release the broadcasts that no lane uses any more."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._broadcasts: dict[str, Broadcast[bytes]] = {}
        self._used: dict[str, str] = {}

    def source(self, published: Published, lane: str) -> registries.BroadcastSource:
        """Return the source of the registry for the tasks of the lane's next micro-batch.

        From then on the lane no longer uses its earlier broadcast, because micro-batches of one lane do not overlap.
        """
        base_id = published.base_id
        with self._lock:
            if base_id not in self._broadcasts:
                packed = pickling.packed(published.base)
                metrics.REGISTRY_BROADCAST_BYTES.set(len(packed))
                self._broadcasts[base_id] = self._context.broadcast(packed)
            self._used[lane] = base_id
            for unused in self._broadcasts.keys() - set(self._used.values()):
                self._broadcasts.pop(unused).destroy()
            return registries.BroadcastSource(base_id=base_id, broadcast=self._broadcasts[base_id], delta=published.changes)


class Broadcasts:
    """Give each micro-batch the newest registry, as a broadcast and a delta. For jobs with `snapshot.source` = "broadcast".

    The constructor starts the Follower.
    """

    def __init__(self, config: settings.Settings, *, stop: threading.Event) -> None:
        self.follower = Follower(config, stop=stop)
        self.follower.start()
        self.pause_reason = self.follower.pause_reason
        self._broadcaster: Broadcaster | None = None

    def source(self, context: SparkContext, lane: str) -> registries.BroadcastSource | None:
        """Return the source of the registry for the lane's next micro-batch. None: the job is asked to stop.

        Wait without limit until Postgres has confirmed the registry in the last `snapshot.max_age_s` seconds. Raise
        SettingsError if `database.url` is no URL, or the key ring does not fit the registry.
        """
        published = self.follower.current()
        if published is None:
            return None
        self._broadcaster = self._broadcaster or Broadcaster(context)
        return self._broadcaster.source(published, lane)
