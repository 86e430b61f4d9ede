"""One Kafka broker for all workers of a run of pytest.

A broker takes 4 CPU seconds to start, and 2 % of a core while it is idle.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from fanout.jvm import jars
from fanout.local import kafka_server


@dataclass(frozen=True)
class SharedBroker:
    """A running broker, for tests that neither stop nor change it."""

    bootstrap_servers: str
    port: int
    pid: int

    def client_settings(self) -> dict[str, str]:
        return {"bootstrap_servers": self.bootstrap_servers, "security_protocol": "PLAINTEXT"}


@contextlib.contextmanager
def running(folder: Path, libraries: jars.Jars) -> Iterator[SharedBroker]:
    """Start the broker of `folder`, or find it running.

    At the end, the process that started the broker waits until no other process uses it, and kills it.
    """
    known = folder / "kafka.json"
    with (folder / "kafka.users").open("w") as users:
        fcntl.flock(users, fcntl.LOCK_SH)  # before the file is read: from now on nobody ends the broker
        with (folder / "kafka.start").open("w") as start:
            fcntl.flock(start, fcntl.LOCK_EX)
            own = None if _runs(known) else _started(folder / "kafka", libraries)
            if own is not None:
                shared = SharedBroker(own.bootstrap_servers, own.port, own.pid)
                known.write_text(json.dumps(asdict(shared)))
        yield SharedBroker(**json.loads(known.read_text()))
        if own is not None:
            fcntl.flock(users, fcntl.LOCK_EX)
            known.unlink()
            own.kill()  # a graceful stop takes seconds, for data that nobody reads again


def _runs(known: Path) -> bool:
    # A worker that crashed has left the file, and its broker has ended with it.
    return known.exists() and psutil.pid_exists(json.loads(known.read_text())["pid"])


def _started(folder: Path, libraries: jars.Jars) -> kafka_server.EmbeddedKafka:
    broker = kafka_server.EmbeddedKafka(folder, libraries=libraries)
    broker.start()
    return broker
