"""Receive the reports of the tasks of one real-time query, and answer each report but the last of a task with an update.

Runs on the driver, with a thread for each task's connection. In real time a task runs for minutes. Spark's accumulators arrive
only when the task ends, and the task's closure never changes. So each task keeps a connection to the driver, and reports
several times a second. The driver answers with the changes that the task's registry lacks, with all suppressed endpoints, and
whether the task must pause or stop (docs/adr/0040).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from pyspark import SparkContext

from delivery import errors
from delivery.observability import listening
from delivery.registry_model import AttemptedEndpoint, EndpointId
from delivery.stages.realtime import channel, messages
from delivery.webhooks.lanes.realtime_lane import Place
from delivery.webhooks.results.counters import Counters

log = logging.getLogger(__name__)

UNRESPONSIVE_S = 10.0
"""Seconds without a report after which a task counts as failed. A healthy task reports every `realtime_task.REPORT_S`."""
MAX_CONNECTIONS = 1000
"""Number of threads of the driver process above which a new connection is refused. Each connection has a thread."""
LOOK_AT = (
    "for a failed task see its traceback in the worker's log; for a lost or silent task check the workers' memory and CPU, and "
    "their network"
)
"""Advice to the operator after a fault of a task."""
RESTARTS = (
    f"lane %s restarts its query at the first unconfirmed record, because %s. Nothing is lost. If often logged: {LOOK_AT}"
)
"""Log message after a fault of a task. Its values are the lane and the fault."""
CUT_OFF = (
    "%d tasks of lane %s have not ended the deliveries that they had begun, %.0f s after they were told to stop. The query "
    "ends without them, and these deliveries may be repeated, with the same webhook-id. If this is logged often, raise "
    "delivery.stop_within_s, and the time that the process manager gives the job"
)
"""Log message when stopping tasks take too long. Its values are the number of tasks, the lane and the seconds."""
PAUSES = (
    "lane %s pauses these partitions (topic/number): %s. The schema registry does not give a schema of their records; the log "
    "of a worker names it. The records wait in Kafka, and all other partitions are delivered. When a schema can be read, the "
    "lane restarts its query and delivers the records, if Kafka still keeps them. Start the schema registry, or correct "
    "schema_registry.url, username, password or ca_file, and restart the job"
)
"""Log message when partitions are paused. Its values are the lane and the partitions."""
_PORT_ERRORS = (errno.EADDRINUSE, errno.EACCES)
"""Error numbers for which another port is the cure."""


def addresses(context: SparkContext) -> tuple[str, str]:
    """Return the address at which workers reach the driver, and the address on which the driver listens.

    An IPv6 address has no brackets, as Python's sockets expect. Spark's own addresses have brackets.
    """
    if (context.master or "").startswith("local["):
        return "127.0.0.1", "127.0.0.1"
    conf = context.getConf()
    host = conf.get("spark.driver.host", "127.0.0.1")
    bind = conf.get("spark.driver.bindAddress", host)
    return host.strip("[]"), bind.strip("[]")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReports:
    """The sum of the reports of all tasks since the last `TaskServer.drain`.

    Each field has the sum of the fields of the same name in `messages.TaskReport`: for sets their union, for `delay_s` the
    largest value.
    """

    counters: Counters = field(default_factory=Counters)
    gone: frozenset[AttemptedEndpoint] = frozenset()
    unresponsive: frozenset[EndpointId] = frozenset()
    records: int = 0
    delay_s: float = 0.0
    """The longest `delay_s` of all reports, in seconds."""

    def plus(self, report: messages.TaskReport) -> TaskReports:
        """Return the sum with one more report."""
        return TaskReports(
            counters=self.counters + report.counters,
            gone=self.gone | report.gone,
            unresponsive=self.unresponsive | report.unresponsive,
            records=self.records + report.records,
            delay_s=max(self.delay_s, report.delay_s),
        )


class TaskServer:
    """Listen for the tasks of one query, collect their reports, and answer them.

    `update` takes the version of the registry that a task has, and returns the answer to the task. The server calls `update` on
    a thread for each task, so `update` must be thread-safe. A call may take seconds, but must end within UNRESPONSIVE_S: a task
    sends no report while it waits for its answer, and then counts as failed. The server itself sets the answer's fields
    `is_stopping`, `driver_s` and `next_offsets`. The constructor's `next_offsets` has, for each partition, the offset at which
    the query starts. Tasks connect to `host`; the server listens on `bind`. `port` 0: the system chooses a port. `clock` is
    monotonic, in seconds. `connect_s` has the meaning of `channel.CONNECT_S`, and `max_connections` that of MAX_CONNECTIONS.
    The constructor raises SettingsError if the port cannot be opened.
    """

    def __init__(
        self,
        update: Callable[[messages.Known], messages.DriverUpdate],
        next_offsets: Mapping[Place, int],
        *,
        bind: str,
        host: str,
        port: int = 0,
        clock: Callable[[], float] = time.monotonic,
        connect_s: float = channel.CONNECT_S,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self._update_for = update
        self._clock = clock
        self._connect_s, self._max_connections = connect_s, max_connections
        self._key = channel.new_key()
        self._lock = threading.Lock()
        self._heard = TaskReports()
        self._next = dict(next_offsets)
        self._running: dict[int, tuple[int, float]] = {}
        """By connection: the number of its task, and when it last reported."""
        self._paused: dict[int, frozenset[Place]] = {}
        """By connection: the paused partitions of its task."""
        self._faults: list[str] = []
        self._has_advanced = self._asks_for_restart = False
        self._is_stopping = self._is_closed = False
        try:
            self._listener = listening.opened(bind, port, backlog=256)
        except OSError as exc:
            cure = "correct spark.driver.bindAddress, or spark.driver.host"
            if exc.errno in _PORT_ERRORS:
                cure = "choose another realtime.port, or 0 for any free one"
            raise errors.SettingsError(
                f"the lane realtime cannot listen on {bind}:{port} ({exc.strerror}), so all lanes stop: {cure}"
            ) from exc
        self.address = channel.Address(host=host, port=self._listener.getsockname()[1], key=self._key)
        threading.Thread(target=self._accept, name="real-time server", daemon=True).start()

    def close(self) -> None:
        """Stop listening. Called when the query has ended: from now on a lost connection is no fault."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def stop_tasks(self) -> None:
        """Ask all tasks to start no more deliveries, and to write the results of those in flight. Return at once."""
        self._is_stopping = True

    def drain(self) -> TaskReports:
        """Return the sum of all reports since the last call, and begin a new sum."""
        with self._lock:
            heard, self._heard = self._heard, TaskReports()
        return heard

    def fault(self) -> str | None:
        """Return why the query cannot continue: a task failed, was lost, or has stopped reporting. None: no fault.

        Of several faults, return the first: it causes the end of the query, which causes further faults. Once `stop_tasks` was
        called, silence is no fault: a stopping task sends no report until its end.
        """
        with self._lock:
            for task, at in self._running.values():
                if not (self._faults or self._is_stopping) and self._clock() - at > UNRESPONSIVE_S:
                    self._faults.append(f"task {task} has not reported for {UNRESPONSIVE_S:.0f} s")
            return self._faults[0] if self._faults else None

    @property
    def running_tasks(self) -> int:
        """The number of tasks that are connected and have not sent their last report."""
        with self._lock:
            return len(self._running)

    @property
    def has_advanced(self) -> bool:
        """True if a task of the query has written the results of at least one record beyond the start offsets."""
        with self._lock:
            return self._has_advanced

    @property
    def positions(self) -> dict[str, dict[int, int]]:
        """For each topic and partition: the offset below which all results are written.

        The offset begins at the query's start offset. Reports of tasks and `reach` move it forward.
        """
        positions: dict[str, dict[int, int]] = {}
        with self._lock:
            for (topic, partition), at in self._next.items():
                positions.setdefault(topic, {})[partition] = at
        return positions

    @property
    def asks_for_restart(self) -> bool:
        """True if a task asks for a restart of the query, to read paused partitions again."""
        with self._lock:
            return self._asks_for_restart

    @property
    def paused(self) -> frozenset[Place]:
        """The partitions whose records wait for a schema. A partition stays in the set after its task has ended."""
        with self._lock:
            return frozenset().union(*self._paused.values())

    def reach(self, offsets: Iterable[tuple[Place, int]]) -> None:
        """Record the next offset of partitions, as Spark has committed them. A smaller offset than the known one is ignored."""
        with self._lock:
            for place, at in offsets:
                self._next[place] = max(at, self._next.get(place, 0))

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                connection, (host, *_) = self._listener.accept()
            except OSError as exc:
                if self._is_closed:
                    return
                log.warning(
                    "the real-time lane could not take a connection of a task (%s), and tries again in a second. If the cause "
                    "is too many open files, raise the driver's limit (ulimit -n)", exc,
                )  # fmt: skip
                time.sleep(1.0)
                continue
            if threading.active_count() > self._max_connections:
                connection.close()
                log.warning(
                    "the real-time lane closed a new connection from %s: the driver has more than %d threads "
                    "(MAX_CONNECTIONS), and each connection takes one. If it was a task, the lane restarts its query or "
                    "ends. Let `source.realtime_pattern` match fewer partitions, and limit access to the port realtime.port",
                    host, self._max_connections,
                )  # fmt: skip
                continue
            threading.Thread(target=self._serve, args=(connection, host), name="real-time task", daemon=True).start()

    def _serve(self, connection: socket.socket, host: str) -> None:
        with connection:
            try:
                with_task = channel.accepted(connection, self._key, connect_s=self._connect_s)
                first = with_task.receive()
            except channel.ChannelBroken as exc:  # also from a client that is no task
                log.warning(
                    "the real-time lane refused a connection from %s (%s). If it was a task, the lane restarts its query or "
                    "ends; if not, limit access to the port realtime.port", host, exc,
                )  # fmt: skip
                return
            name = id(connection)
            try:
                self._converse(name, with_task, first)
            except channel.ChannelBroken as exc:
                self._record_loss(name, str(exc))
            except Exception as exc:  # a dead thread would look like an unresponsive task
                log.exception(
                    "an unforeseen error in the report of a task of lane realtime: the lane restarts its query, or ends if "
                    "restarts do not help. Nothing is lost. Send this traceback to the maintainers of the platform"
                )
                self._record_loss(name, str(exc))

    def _converse(self, name: int, with_task: channel.Channel, report: messages.TaskReport) -> None:
        is_first = True
        while True:
            self._record(name, report)
            if report.state is not messages.TaskState.RUNNING:
                return
            update, is_stopping = self._update_for(report.known), self._is_stopping
            with self._lock:
                known = dict(self._next) if is_first else {}
            with_task.send(
                messages.DriverUpdate(
                    base_id=update.base_id,
                    base=update.base,
                    changes=update.changes,
                    suppressed=update.suppressed,
                    is_paused=update.is_paused,
                    is_stopping=is_stopping,
                    driver_s=time.time(),
                    next_offsets=known,
                )
            )
            is_first = False
            if is_stopping:
                with_task.wait_without_timeout()
            report = with_task.receive()

    def _record(self, name: int, report: messages.TaskReport) -> None:
        with self._lock:
            self._heard = self._heard.plus(report)
            self._paused[name] = report.paused
            self._asks_for_restart |= report.asks_for_restart
            for place, at in report.next_offsets.items():
                before = self._next.get(place, 0)
                self._has_advanced |= at > before
                self._next[place] = max(at, before)
            if report.state is messages.TaskState.RUNNING:
                self._running[name] = (report.task, self._clock())
                return
            self._running.pop(name, None)
            if report.state is messages.TaskState.FAILED:
                self._faults.append(f"task {report.task} failed: {report.failure}")

    def _record_loss(self, name: int, why: str) -> None:
        with self._lock:
            task, _ = self._running.pop(name, (-1, 0.0))
            if not self._is_closed:
                self._faults.append(f"the worker of task {task} was lost: {why}")
