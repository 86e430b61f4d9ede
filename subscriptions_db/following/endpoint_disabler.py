"""In the registry, disable those endpoints that answered with status 410 (gone) or have failed for days.

Runs on the driver, on a thread of its own, so that a slow or absent Postgres never delays a micro-batch. The lanes request to
disable endpoints, and the thread writes these requests to Postgres. Guarantee: while Postgres answers, each request is written.
Exception: for EFFECT_S after a request was written, further requests for the same endpoint and URL are ignored. While Postgres
does not answer, a request that was last made more than STALE_S ago is dropped: the endpoint may have recovered, or an operator
may have acted. If the endpoint is still gone or failing, the lanes repeat the request, also after a restart.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import cachetools
import tenacity

from delivery.config import settings
from delivery.observability import metrics
from delivery.registry_model import FAILING, AttemptedEndpoint, Disable, EndpointId
from subscriptions_db.postgres import connect
from subscriptions_db.registration import endpoint_status

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""Seconds between two checks of the stop event, and the wait after an unexpected failure."""
EFFECT_S = 60.0
"""Seconds after a written request in which further requests for the same endpoint and URL are ignored, also if the endpoint was
not active. The ignored requests come from attempts that workers made before they knew of the change. If an operator has enabled
the endpoint again, such a request would disable it again."""
MAX_NAMED = 20
"""Most endpoints that one log line names."""
STALE_S = 300.0
"""Seconds after which a request that was not repeated is dropped. The retry lane probes an endpoint with waiting entries at
least once in `retry.max_probe_interval_s`, by default a minute. If the probe fails, the lane repeats the request. For an
endpoint without waiting entries, the request is repeated when the endpoint fails again."""

Write = Callable[[Sequence[AttemptedEndpoint], str], Iterable[str]]
"""A function that disables, with a reason, the given endpoints that are active and still have the URL of the failed attempts.
It returns the ids of the endpoints that it has disabled. For FAILING, an endpoint must have been active for
`retry.disable_after_s`."""


class _Request(NamedTuple):
    reason: str
    at: float
    """When the request was last made; monotonic seconds."""


@contextlib.contextmanager
def running(config: settings.Settings, stop: threading.Event) -> Iterator[Disable]:
    """Run an EndpointDisabler inside the context, and yield its method `disable`.

    The end of the context sets `stop`, and waits at most 10 s until the last requests are written.
    """
    made = EndpointDisabler(config, stop)
    try:
        yield made.disable
    finally:
        stop.set()
        made.close()


class EndpointDisabler:
    """Collect the lanes' requests to disable endpoints, and write them to the registry on a thread. Thread-safe."""

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
        self._changed = threading.Condition()
        self._clock = clock
        self._waiting: dict[AttemptedEndpoint, _Request] = {}
        self._written: cachetools.TTLCache[AttemptedEndpoint, None] = cachetools.TTLCache(100_000, EFFECT_S, timer=clock)
        self._thread = threading.Thread(target=self._run, name="disabling", daemon=True)
        self._thread.start()

    def disable(self, attempted: Iterable[AttemptedEndpoint], reason: str) -> None:
        """Request to disable the given endpoints that are active, for `reason`: FAILING or `error_classes.GONE`.

        Return at once. Callers repeat the request as long as an endpoint fails. A waiting request for the same endpoint and URL
        keeps its reason. For EFFECT_S after a request was written, further requests for the same endpoint and URL are ignored.
        For FAILING, an endpoint is disabled only if it has been active for `retry.disable_after_s`, or since an unknown time.
        `AttemptedEndpoint.url_sha256` is the digest of the URL of the attempts, if this is known. If the endpoint has another
        URL now, the endpoint is not disabled.
        """
        with self._changed:
            for endpoint in attempted:
                if endpoint not in self._written:
                    known = self._waiting.get(endpoint)
                    self._waiting[endpoint] = _Request(known.reason if known else reason, self._clock())
            self._changed.notify()

    def close(self, timeout_s: float = 10.0) -> None:
        """Wait at most `timeout_s` for the thread, which tries to write the last requests. Called after `stop` was set."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        patiently = connect.retry_until_available("Requests to disable endpoints wait", self._stop)
        while not self._stop.is_set():
            with self._changed:
                if not self._waiting:
                    self._changed.wait(LOOK_S)
                    continue
            try:
                patiently(self._write_all)
            except tenacity.RetryError:
                break  # asked to stop: one more try follows
            except Exception:  # the thread must survive, or no endpoint would be disabled any more
                waiting = self._waiting_ids()
                log.exception(
                    "%d endpoints could not be disabled in the registry: they get attempts as before, and a retry follows in "
                    "%.0f s. If this is logged again, send the traceback to the maintainers of the platform",
                    len(waiting), LOOK_S, extra=_named(waiting),
                )  # fmt: skip
                self._stop.wait(LOOK_S)
        try:
            self._write_all()
        except Exception as exc:  # noqa: BLE001  # the process ends; the lanes of the next one repeat the request
            waiting = self._waiting_ids()
            log.warning(
                "%d endpoints were not disabled before the job stopped (%s): the next job disables them if they still fail. "
                "There is nothing to do",
                len(waiting), exc, extra=_named(waiting),
            )  # fmt: skip

    def _waiting_ids(self) -> list[EndpointId]:
        with self._changed:
            return [endpoint.endpoint_id for endpoint in self._waiting]

    def _write_all(self) -> None:
        with self._changed:
            oldest = self._clock() - STALE_S
            stale = [endpoint for endpoint, request in self._waiting.items() if request.at < oldest]
            for endpoint in stale:
                del self._waiting[endpoint]
            waiting = dict(self._waiting)
        if stale:
            log.warning(
                "%d endpoints were not disabled: the registry could not be written for %.0f s. They get attempts as before, "
                "and are disabled once they fail again. Check Postgres. Earlier log lines, `the registry could not be read or "
                "changed` or `could not be disabled in the registry`, name the cause",
                len(stale), STALE_S, extra=_named(endpoint.endpoint_id for endpoint in stale),
            )  # fmt: skip
        for reason in sorted({request.reason for request in waiting.values()}):
            attempted = [endpoint for endpoint, request in waiting.items() if request.reason == reason]
            disabled = list(self._write(attempted, reason))
            with self._changed:
                for endpoint in attempted:
                    del self._waiting[endpoint]
                    self._written[endpoint] = None
            metrics.ENDPOINTS_DISABLED.labels(reason).inc(len(disabled))
            for name in disabled:
                log.warning(
                    "endpoint disabled: nothing is sent to it, and its deliveries wait up to max_age_s. When its receiver "
                    "works again, run `fanout endpoints enable %s`",
                    name,
                    extra={"endpoint_id": name, "reason": reason},
                )


def _named(endpoint_ids: Iterable[EndpointId]) -> dict[str, list[EndpointId]]:
    """Return the field `endpoint_ids` of a log line, with at most MAX_NAMED of the endpoints."""
    return {"endpoint_ids": sorted(endpoint_ids)[:MAX_NAMED]}


def _write(config: settings.Settings, attempted: Sequence[AttemptedEndpoint], reason: str) -> list[str]:
    active_s = config.retry.disable_after_s if reason == FAILING else 0.0
    with connect.connect(config.database, application_name="fanout disabling") as connection:
        return endpoint_status.disable_active(connection, attempted, reason, active_s=active_s)
