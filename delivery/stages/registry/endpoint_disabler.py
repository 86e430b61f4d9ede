"""Disable endpoints that are gone, or have failed for days, in the registry.

Runs on the driver, on a thread of its own, so that a slow or absent Postgres never holds up a micro-batch. Guarantee: what is
still told when Postgres is there is written. What was told last STALE_S before is not: the endpoint may be well by now, or an
operator may have seen to it. One that is gone or failing as before is told again, also to a job that starts again.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import cachetools
import tenacity

from delivery.config import settings
from delivery.model import EndpointId
from delivery.observability import metrics
from subscriptions_db.postgres import connect
from subscriptions_db.registration import endpoint_status

log = logging.getLogger(__name__)

FAILING = "failing"
"""Reason, beside retry.GONE: nothing was accepted for `retry.disable_after_s`, all of which the endpoint was active."""
LOOK_S = 1.0
"""How often to look whether the job is to stop; and the wait after a failure that was not foreseen."""
EFFECT_S = 60.0
"""What is told of an endpoint so soon after it was disabled comes from requests made before the workers knew. Were it written,
it would undo what an operator has enabled meanwhile."""
STALE_S = 300.0
"""What was told last so long ago is not written. Longer than it takes to be told again of one for which something waits: the
retry lane asks it at least once in `retry.max_probe_interval_s`, a minute. Another is told of when it fails again."""

Write = Callable[[Iterable[EndpointId], str], Iterable[str]]


class _Told(NamedTuple):
    reason: str
    at: float
    """When it was told last."""


@contextlib.contextmanager
def running(config: settings.Settings, stop: threading.Event) -> Iterator[Disabling]:
    """Have one inside. What ends the inside ends the job: `stop` is set."""
    made = Disabling(config, stop)
    try:
        yield made
    finally:
        stop.set()
        made.close()


class Disabling:
    """Take note of endpoints to disable, and write them. Safe between threads."""

    def __init__(
        self,
        config: settings.Settings,
        stop: threading.Event,
        *,
        write: Write | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write = write or functools.partial(_write, config)
        self._stop = stop
        self._told = threading.Condition()
        self._clock = clock
        self._waiting: dict[EndpointId, _Told] = {}
        self._written: cachetools.TTLCache[EndpointId, None] = cachetools.TTLCache(100_000, EFFECT_S, timer=clock)
        self._thread = threading.Thread(target=self._run, name="disabling", daemon=True)
        self._thread.start()

    def disable(self, endpoint_ids: Iterable[EndpointId], reason: str) -> None:
        """Have them disabled soon, those that are active. Does not wait; may be told the same again after each micro-batch."""
        with self._told:
            for endpoint_id in endpoint_ids:
                if endpoint_id not in self._written:
                    known = self._waiting.get(endpoint_id)
                    self._waiting[endpoint_id] = _Told(known.reason if known else reason, self._clock())
            self._told.notify()

    def close(self, timeout_s: float = 10.0) -> None:
        """Wait, after `stop` was set, for the last try to write."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        patiently = connect.retry_until_available(self._stop)
        while not self._stop.is_set():
            with self._told:
                if not self._waiting:
                    self._told.wait(LOOK_S)
                    continue
            try:
                patiently(self._write_all)
            except tenacity.RetryError:
                return  # asked to stop, and the last try has failed
            except Exception:  # the thread must survive, or no endpoint would be disabled any more
                log.exception("disabling endpoints failed")
                self._stop.wait(LOOK_S)
        try:
            self._write_all()
        except Exception as exc:  # noqa: BLE001  # the process ends; the next one is told again
            log.warning("endpoints not disabled before the end: %s", exc)

    def _write_all(self) -> None:
        with self._told:
            oldest = self._clock() - STALE_S
            stale = [endpoint_id for endpoint_id, told in self._waiting.items() if told.at < oldest]
            for endpoint_id in stale:
                del self._waiting[endpoint_id]
            waiting = dict(self._waiting)
        if stale:
            log.warning("%d endpoints are not disabled: that was told too long ago", len(stale))
        for reason in sorted({told.reason for told in waiting.values()}):
            told = [endpoint_id for endpoint_id, one in waiting.items() if one.reason == reason]
            disabled = list(self._write(told, reason))
            with self._told:
                for endpoint_id in told:
                    del self._waiting[endpoint_id]
                    self._written[endpoint_id] = None
            metrics.ENDPOINTS_DISABLED.labels(reason).inc(len(disabled))
            for name in disabled:
                log.warning("endpoint disabled", extra={"endpoint_id": name, "reason": reason})


def _write(config: settings.Settings, endpoint_ids: Iterable[EndpointId], reason: str) -> list[str]:
    active_s = config.retry.disable_after_s if reason == FAILING else 0.0
    with connect.connect(config.database, application_name="fanout disabling") as connection:
        return endpoint_status.disable_active(connection, endpoint_ids, reason, active_s=active_s)
