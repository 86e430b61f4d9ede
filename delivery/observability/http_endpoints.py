"""Serve `/metrics`, `/healthz` and `/readyz`, when `metrics.port` is set.

Runs on the driver, in `fanout archive` and in `fanout serve`. Requests are served on threads of their own, so a failure of a
request does not stop the process.
"""

from __future__ import annotations

import functools
import http.server
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import orjson
import prometheus_client
from prometheus_client import exposition

from delivery import errors
from delivery.config import settings
from delivery.observability import health, listening, metrics

log = logging.getLogger(__name__)


def serve(config: settings.MetricsSettings, watches: Mapping[str, health.Watch]) -> None:
    """Start a thread that serves `/metrics`, `/healthz` and `/readyz` until the process ends, if `metrics.port` is set.

    The metric fanout_ready follows `watches`, also if the port is not set. `watches` has, by name, a watch for each lane of a
    job, or the one watch of `fanout archive` or `fanout serve`. Called once, early in the start of a process. Raise
    SettingsError if the port cannot be opened.
    """
    for name, watch in watches.items():
        metrics.READY.labels(name).set_function(functools.partial(_is_ready, watch))
    if not config.port:
        return
    try:
        server = _Server(listening.opened(config.host, config.port), _Handler)
    except OSError as exc:
        raise errors.SettingsError(
            f"setting metrics.port: {config.host}:{config.port} cannot be opened ({exc.strerror}), so nothing was started. "
            "Choose another port, or correct metrics.host"
        ) from exc
    server.config, server.watches = config, watches
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()


def _is_ready(watch: health.Watch) -> bool:
    return health.readiness(watch.facts()).ok


class _Server(http.server.ThreadingHTTPServer):
    config: settings.MetricsSettings
    watches: Mapping[str, health.Watch]

    def __init__(self, listening_socket: socket.socket, handler: type[http.server.BaseHTTPRequestHandler]) -> None:
        super().__init__(listening_socket.getsockname()[:2], handler, bind_and_activate=False)
        self.socket.close()  # made by the base class for IPv4, whatever the address is
        self.socket = listening_socket

    def handle_error(self, *_: Any) -> None:
        # Called in the exception handler.
        log.debug("a scrape or probe failed, mostly because its client closed the connection", exc_info=True)  # noqa: LOG014


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server
    timeout = 10
    """Seconds after which a client that sends nothing is disconnected."""

    def do_GET(self) -> None:
        match self.path.partition("?")[0]:
            case "/metrics":
                encode, content_type = exposition.choose_encoder(self.headers.get("accept", ""))
                self._answer(HTTPStatus.OK, content_type, encode(prometheus_client.REGISTRY))
            case "/healthz":
                stalled_after_s = self.server.config.stalled_after_s
                self._answer_verdict(lambda facts: health.liveness(facts, stalled_after_s))
            case "/readyz":
                self._answer_verdict(health.readiness)
            case _:
                self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"/metrics /healthz /readyz\n")

    def _answer_verdict(self, judge: Callable[[health.Facts], health.ProbeAnswer]) -> None:
        lanes = {lane: watch.facts() for lane, watch in self.server.watches.items()}
        verdicts = {lane: judge(facts) for lane, facts in lanes.items()}
        verdict = health.worst_of(verdicts)
        by_lane = {
            lane: {"ok": verdicts[lane].ok, "reason": verdicts[lane].reason, "phase": facts.phase, "lag": facts.lag}
            for lane, facts in lanes.items()
        }
        document = {"ok": verdict.ok, "reason": verdict.reason, "lanes": by_lane}
        status = HTTPStatus.OK if verdict.ok else HTTPStatus.SERVICE_UNAVAILABLE
        self._answer(status, "application/json", orjson.dumps(document) + b"\n")

    def _answer(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class's name
        log.debug(format, *args)
