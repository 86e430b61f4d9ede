"""Start Postgres and Kafka with their data in one folder, and stop both together.

Runs in `fanout` commands, the tests and the load tests.
"""

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import fcntl
import json
import os
import secrets
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from delivery import errors
from fanout.jvm import jars
from fanout.local import kafka_server, postgres_server

LOCK = "stack.lock"
"""The file whose lock keeps a second stack out of the folder."""
DEVELOPMENT = {
    "allow_networks": ["127.0.0.0/8"],
    "allow_http": True,
    "allow_ports": [],
    "unlimited_hosts": ["127.0.0.1", "localhost"],
}
"""Settings for receivers on this machine: the address guard permits these receivers without TLS and on any port, and the limits
for each host do not apply to them."""


class Stack:
    """A context in which Postgres and Kafka run. With `is_fresh`, the folder is emptied first. `kafka_tls` is for the broker.

    Entering the context raises LocalStackError in these cases: a server does not start, the jars cannot be downloaded,
    `kafka_port` is in use, the folder cannot be created, or another process uses the folder.
    """

    def __init__(
        self, root: Path, *, kafka_port: int = 0, is_fresh: bool = False, kafka_tls: kafka_server.BrokerTls | None = None
    ) -> None:
        self._root = root.resolve()
        self._kafka_tls = kafka_tls
        self._kafka_port = kafka_port
        self._is_fresh = is_fresh
        self._exit = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as undo:
            try:
                self._root.mkdir(parents=True, exist_ok=True)
            except OSError as exc:
                raise errors.LocalStackError(
                    f"{self._root} cannot be created ({exc.strerror}), so nothing was started: name another folder"
                ) from None
            undo.enter_context(_locked(self._root / LOCK))
            if self._is_fresh:
                _empty(self._root)  # under the lock, so not while another process uses the folder
            if self._kafka_port:
                kafka_server.require_free(self._kafka_port, "kafka")
            self.kafka = kafka_server.EmbeddedKafka(
                self._root / "kafka", libraries=jars.ensure(), port=self._kafka_port, tls=self._kafka_tls
            )
            self.postgres = postgres_server.EmbeddedPostgres(self._root / "postgres")
            undo.callback(self.postgres.stop)
            undo.callback(self.kafka.stop)
            with concurrent.futures.ThreadPoolExecutor() as pool:
                for started in [pool.submit(self.kafka.start), pool.submit(self.postgres.start)]:
                    started.result()
            self._exit = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()


def write_local_settings(root: Path, stack: Stack) -> None:
    """Write local.toml in `root`: the servers' addresses, an encryption key, and settings that permit local receivers.

    The encryption keys of an earlier local.toml are kept, and its other settings are not.
    """
    path = root / "local.toml"
    known = tomllib.loads(path.read_text()) if path.is_file() else {}
    document: dict[str, dict[str, Any]] = {
        "database": {"url": stack.postgres.url},
        "kafka": stack.kafka.client_settings(),
        "keys": known.get("keys") or {"active": "local", "ring": {"local": new_key()}},
        "delivery": DEVELOPMENT,
    }
    lines = ["# Written by `fanout up`, for development on this machine only."]
    for area, fields in document.items():
        lines.append(f"[{area}]")
        lines += [f"{name} = {toml(value)}" for name, value in fields.items()]
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write("\n".join(lines) + "\n")
    fresh.replace(path)  # never half written: without the key the secrets of the registry cannot be decrypted


def new_key() -> str:
    """Return a new key for the setting `keys.ring`."""
    return base64.b64encode(secrets.token_bytes(32)).decode()


def toml(value: Any) -> str:
    """Return `value`, which may be a table, as TOML: scalars and lists in JSON's literals.

    `value` must have no null, which TOML lacks. It must also have no table inside of a table or list, and no character beyond
    U+FFFF: TOML writes these in another way.
    """
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(name)} = {json.dumps(entry)}" for name, entry in value.items()) + " }"
    return json.dumps(value)


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != LOCK:
            entry.unlink()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise errors.LocalStackError(
                f"another `fanout up` runs in {path.parent}, or a demo, so nothing was started: use or stop that process, or "
                "let `fanout up` use another folder with --root"
            ) from None
        yield
