"""Change the registry at a steady pace: disable and enable spare endpoints, pause and resume their subscriptions.

No event is due to a spare endpoint.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from delivery.config import plan_builder, settings
from load_tests.scenarios.at_scale import population
from subscriptions_db.manifest import manifest
from subscriptions_db.postgres import connect
from subscriptions_db.registration import apply, endpoint_status
from subscriptions_db.secrets import keyring
from subscriptions_db.snapshot import registry_reader

CONNECTIONS = 4
"""Connections to Postgres, one for each thread. A single connection made 55 changes a second on two busy cores."""
KINDS = 4
"""Number of kinds of changes. In turn: disable an endpoint, pause its subscription, enable the endpoint, resume the
subscription."""


class Change(NamedTuple):
    """One committed change of the registry."""

    at_s: float
    """Time of the commit, on the clock of the sampler."""
    revision: int
    """Newest revision of the registry right after the commit."""


@dataclass(kw_only=True)
class Churn:
    """A context in which threads change the registry `per_s` times a second. The context's end raises the error of a change."""

    config: settings.Settings
    per_s: int
    spare: int
    """Number of spare endpoints, each with a subscription, that are changed in turn."""
    now_s: Callable[[], float]
    """The clock of the sampler (`Sampler.now_s`)."""
    changes: list[Change] = field(default_factory=list)
    """Committed changes. After the context's end they are sorted by revision."""

    def __enter__(self) -> Self:
        self._failure: Exception | None = None
        self._enough = threading.Event()
        self._numbers = itertools.count()
        self._began = time.monotonic()
        self._threads = [threading.Thread(target=self._run, name="churn", daemon=True) for _ in range(CONNECTIONS)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._enough.set()
        for thread in self._threads:
            thread.join()
        self.changes.sort(key=lambda change: change.revision)
        if kind is None and self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            changer = _Changer(self.config, self.spare)
            with connect.connect(self.config.database) as connection:
                for number in self._numbers:  # shared by the threads: each number is one thread's
                    if self._enough.wait(max(0.0, self._began + number / self.per_s - time.monotonic())):
                        return
                    changer.change(connection, number)
                    self.changes.append(Change(self.now_s(), registry_reader.revisions(connection).newest))
        except Exception as exc:  # noqa: BLE001  `__exit__` raises it in the scenario's thread
            self._failure = exc


class _Changer:
    """Make changes of the spare rows. After KINDS rounds over all spare endpoints, the registry is as it was before."""

    def __init__(self, config: settings.Settings, spare: int) -> None:
        self._guard = plan_builder.guard_of(config.delivery)
        self._ring = keyring.KeyRing.from_settings(config.keys)
        self._spare = spare

    def change(self, connection: connect.Connection, count: int) -> None:
        """Make the change with the number `count`. The first change has the number 0."""
        round_, number = divmod(count, self._spare)
        kind = round_ % KINDS
        if kind == 0:
            endpoint_status.disable(connection, population.spare_id(number), "load_test")
        elif kind == 1:
            self._put(connection, number, "paused")
        elif kind == 2:
            endpoint_status.enable(connection, population.spare_id(number))
        else:
            self._put(connection, number, "active")

    def _put(self, connection: connect.Connection, number: int, status: str) -> None:
        document = {"subscriptions": [population.spare_subscription(number, status)]}
        with connection.transaction():
            apply.apply_rows(connection, manifest.check(document, self._guard), self._ring)
