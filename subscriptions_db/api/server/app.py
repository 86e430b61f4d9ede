"""Read each HTTP request, hand it to a worker thread (handler.py), and write the answer.

Runs in `fanout serve`, on an event loop. publish_handler.py handles requests that publish events.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from http import HTTPStatus
from typing import Any, TypeVar

import orjson
from aiohttp import web

from delivery import errors
from delivery.config import plan_builder, settings
from delivery.observability import metrics
from delivery.webhooks.results.counters import NONE
from subscriptions_db.api.admission import admission, key_use, request_bodies
from subscriptions_db.api.contract import deprecation, etags, problem_types, problems
from subscriptions_db.api.contract.deprecation import Deprecation
from subscriptions_db.api.contract.principals import Principal, Scope
from subscriptions_db.api.contract.routes import Route
from subscriptions_db.api.documents import openapi, problem_pages
from subscriptions_db.api.oidc.provider_keys import ProviderKeys
from subscriptions_db.api.oidc.tokens import TokenVerifier
from subscriptions_db.api.registry import test_events
from subscriptions_db.api.server import (
    answer_sender,
    handler,
    long_polls,
    publish_handler,
    route_table,
    snapshot_feed,
    transactions,
    worker_threads,
)
from subscriptions_db.manifest import mistakes
from subscriptions_db.registration import receiver_permission
from subscriptions_db.server_bounds import ServerBounds

log = logging.getLogger(__name__)

HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
BYTES = "application/octet-stream"
HEALTH = "/healthz"
"""The path of the liveness probe. The API answers it under any load: a restart of an overloaded API would help no request."""
TOO_LONG = "the request exceeded api.request_timeout_s and may be executed: try again, with the same Idempotency-Key and ids"
ON_FAILURE = "the request was answered with 500: send this traceback to the maintainers of the platform"
"""The field `advice` of the log line about a request that failed unexpectedly."""
REQUEST_ID: web.RequestKey[str] = web.RequestKey("request_id", str)
"""The id of a request: in the header `X-Request-Id` of its answer, in its problem document and in the log."""
DEPRECATIONS: web.RequestKey[set[Deprecation]] = web.RequestKey("deprecations", set)
"""The deprecations of the operation, the parameters and the fields that a request uses."""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
_KEY = re.compile(r"[!-~]{1,255}")

_KINDS = {"letter_id": "dead letter", "webhook_id": "delivery"}
"""Path parameter → the kind of its resource, for a 404. Other parameters are named after the kind, such as `endpoint_id`."""

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Api:
    """The application and its worker threads."""

    def __init__(
        self,
        config: settings.Settings,
        opened: transactions.Store,
        sending: test_events.TestEventSender,
        bounds: ServerBounds,
    ) -> None:
        self._config = config.api
        self._answers = answer_sender.AnswerSender(bounds.sending_s, config.api.max_waiting)
        self._store = opened
        self._test_events = sending
        guard = plan_builder.guard_of(config.delivery)
        self._answerer = handler.RequestHandler(opened, opened.ring, guard, config.api, config.delivery.webhook_origin)
        self._threads = worker_threads.WorkerThreads(config.api.max_connections, max_waiting=config.api.max_waiting)
        self._key_use = key_use.KeyUse(lambda key_ids: self._threads.run(functools.partial(opened.note_use, key_ids)))
        self._provider = ProviderKeys(config.oidc, read_every_s=bounds.provider_read_every_s) if config.oidc.is_on else None
        self._admission = admission.Admission(
            self._read_key,
            max_per_s=config.api.max_requests_per_s,
            max_events_per_s=config.api.max_events_per_s,
            max_publishing_requests_per_s=config.api.max_publishing_requests_per_s,
            on_use=self._key_use.note,
            tokens=TokenVerifier(config.oidc, self._provider) if self._provider else None,
            cache_s=bounds.key_cache_s,
        )
        self._publishing = publish_handler.Publishing(
            config,
            self._admission,
            lambda *counted: self._threads.run(functools.partial(opened.add_published, *counted)),
            self._threads.place,
        )
        self._bodies = request_bodies.BodyReader(self._threads.place, self._admission, config.api.max_body_bytes)
        by_key, outside = self._admission.authenticate, self._outside_in_flight
        self._polls = long_polls.LongPolls(config.api, self._handle, by_key, outside, every_s=bounds.poll_every_s)
        self._followers = snapshot_feed.SnapshotFeed(config.api, opened, self._threads.run, by_key, outside)
        self._causes = problems.CauseLog()
        self._in_flight = 0
        self._readiness: asyncio.Task[None] | None = None
        """The newest check of readiness. Probes that come while it runs share it."""
        self._probes = 0

    def application(self) -> web.Application:
        """Return the aiohttp application with all routes."""
        app = web.Application(middlewares=[self._guarded], client_max_size=self._config.max_body_bytes)
        for route in route_table.ROUTES:
            answer = self._answer if route.handler else self._publish
            _add(app, route.method, route.path, functools.partial(answer, route), has_head=not route.is_validation)
        document = orjson.dumps(openapi.document(route_table.ROUTES, self._config.public_url))
        _add(app, "GET", "/v1/openapi.json", functools.partial(_static, document))
        pages = {"": problem_pages.html_list()} | {f"/{code}": problem_pages.html_page(code) for code in problem_types.TYPES}
        for below, page in pages.items():
            _add(app, "GET", problem_types.PATH + below, functools.partial(_static, page, content_type="text/html"))
        _add(app, "GET", HEALTH, functools.partial(_static, b'{"ok":true}'))
        _add(app, "GET", "/readyz", self._ready)
        app.on_response_prepare.append(_set_headers)
        app.on_shutdown.extend((self._polls.end, self._followers.end))
        app.on_cleanup.extend((self._key_use.end, self._publishing.end))
        if self._provider is not None:
            app.on_startup.append(self._provider.begin)
            app.on_cleanup.append(self._provider.end)
        return app

    def close(self) -> None:
        """Wait for the worker threads to end, and for Kafka's confirmations (`Publishing.close`)."""
        self._threads.close()
        self._publishing.close()

    async def _answer(self, route: Route, request: web.Request) -> web.Response:
        principal = await self._admitted(route, request)
        body = await self._bodies.json(request, principal) if route.body else b""
        in_thread = functools.partial(self._threads.run, customer_id=principal.customer_id)
        asked = handler.ApiRequest(
            principal=principal,
            path=_path(route, request),
            query=_query(request),
            body=body,
            idempotency_key=_idempotency_key(request) if route.is_change else None,
            header=_header(request, route.header) if route.header else None,
            conditions=_conditions(route, request),
            deprecations=request[DEPRECATIONS],
        )
        answer = await self._handle(route, asked)
        if answer.awaited is not None:
            answer = await self._polls.wait(request, route, asked, answer)
        if answer.exchange is not None or answer.sending is not None:
            long_polls.extend(request, self._test_events.timeout_s + self._config.request_timeout_s)
        if answer.exchange is not None:
            record = functools.partial(self._answerer.record, route, asked, answer.exchange)
            said = await self._test_events.ask(answer.exchange.to, functools.partial(in_thread, record))
            # Without the customer's id, so no share of threads refuses the call: a refusal would lose the receiver's reply.
            answer = await self._threads.run(functools.partial(self._answerer.conclude, route, asked, answer.exchange, said))
        if answer.following is not None:
            return await self._followers.answer(request, answer.following)
        document = answer.document
        if answer.sending is not None:
            record = functools.partial(self._answerer.record, route, asked, answer.sending)
            result = await self._test_events.send(answer.sending, functools.partial(in_thread, record))
            document = result.model_dump(mode="json")
        headers = HEADERS | ({"idempotency-replayed": "true"} if answer.is_repeated else {})
        if answer.content is not None:
            return web.Response(status=answer.status, headers=headers, body=answer.content, content_type=BYTES)
        if document is None:
            return web.Response(status=answer.status, headers=headers)
        if answer.status == HTTPStatus.CREATED:
            headers |= route.location_headers(document, asked.query)
        if principal.scope is Scope.WRITE_ONLY and route.is_silent_to_writers:
            return web.Response(status=HTTPStatus.NO_CONTENT, headers=headers)
        return _shown(request, route, answer.status, headers, document)

    async def _publish(self, route: Route, request: web.Request) -> web.Response:
        document = await self._publishing.answer(route, request, _query(request), request[DEPRECATIONS])
        return web.Response(status=route.status, headers=HEADERS, body=_json(document), content_type="application/json")

    async def _admitted(self, route: Route, request: web.Request) -> Principal:
        """Return the principal of a request: by its API key or token, or for a callback by the token in its path."""
        if not route.is_open:
            return await self._admission.admit(request.headers.get("authorization"), route, admission.noted_by(request))
        path = _path(route, request)
        found = functools.partial(self._store.owner_of_question, path["endpoint_id"], receiver_permission.digest(path["token"]))
        return await self._admission.admit_receiver(functools.partial(self._read, found))

    async def _handle(self, route: Route, asked: handler.ApiRequest) -> handler.ApiAnswer:
        return await self._threads.run(functools.partial(self._answerer.answer, route, asked), asked.principal.customer_id)

    async def _ready(self, _: web.Request) -> web.Response:
        # Probes need no key. If each took a thread or a place in flight, a flood of them would keep the customers out.
        if self._readiness is None or self._readiness.done():
            self._readiness = asyncio.create_task(self._threads.run(self._store.require_ready))
        if self._probes >= self._config.max_waiting:
            raise problems.unavailable("too many readiness probes wait, so this one was not answered: try again")
        self._probes += 1
        try:
            with self._outside_in_flight():
                await asyncio.shield(self._readiness)  # a client that hangs up must not end the check of the others
        except errors.SettingsError as exc:
            raise problems.from_error(exc) from exc
        except errors.FanoutError as exc:
            log.warning("/readyz answers 503, so that a load balancer sends no requests here until this is repaired: %s", exc)
            raise problems.not_ready(exc) from exc
        finally:
            self._probes -= 1
        return await _static(b'{"ok":true}', _)

    async def _read_key(self, key_id: str) -> dict[str, Any] | None:
        return await self._read(functools.partial(self._store.key_row, key_id))

    async def _read(self, read: Callable[[], T]) -> T:
        try:
            return await self._threads.run(read)
        except errors.FanoutError as exc:
            raise problems.from_error(exc) from exc

    @contextlib.contextmanager
    def _outside_in_flight(self) -> Iterator[None]:
        """Exclude a waiting request from the in-flight limit. Polls have limits of their own, and probes share a check."""
        self._in_flight -= 1
        try:
            yield
        finally:
            self._in_flight += 1

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer a request, or answer 503 after its timeout. The request counts as in flight until its answer is known."""
        self._in_flight += 1
        try:
            response = await self._answered(request, handler)
        finally:
            self._in_flight -= 1
        await self._answers.send(request, response, _named(request))
        return response

    async def _answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        began = time.monotonic()
        request_id = request[REQUEST_ID] = _request_id(request)
        resource = request.match_info.route.resource
        request[DEPRECATIONS] = route_table.deprecations(request.method, resource.canonical) if resource else set()
        try:
            async with asyncio.timeout(self._config.request_timeout_s) as request[long_polls.TIMEOUT]:
                has_room = self._in_flight <= self._config.max_waiting or request.path == HEALTH
                response = await (handler if has_room else _full)(request)
        except problems.Refused as exc:
            self._causes.write(exc, request_id)
            response = self._problem(exc, request_id)
            if response.status == HTTPStatus.REQUEST_TIMEOUT:
                response.force_close()  # the rest of the body may still be on its way
        except web.HTTPException as exc:
            response = self._problem(_of_http(exc, request), request_id)
        except TimeoutError:
            response = self._problem(problems.unavailable(TOO_LONG), request_id)
            response.force_close()  # a body may still be on its way
        except Exception:
            # One request must not end the server. The answer reveals nothing of the error.
            log.exception("api.failed", extra=_named(request) | {"advice": ON_FAILURE})
            refused = problems.Refused(HTTPStatus.INTERNAL_SERVER_ERROR, problems.INTERNAL)
            response = self._problem(refused, request_id)
        _record(request, response.status, time.monotonic() - began)
        return response

    def _problem(self, refused: problems.Refused, request_id: str) -> web.Response:
        document = problem_types.document(refused.problem, self._config.public_url, request_id)
        return web.Response(
            status=refused.problem.status,
            headers=HEADERS | refused.headers,
            body=orjson.dumps(document),
            content_type=problems.CONTENT_TYPE,
        )


def _shown(request: web.Request, route: Route, status: int, headers: dict[str, str], document: dict[str, Any]) -> web.Response:
    """Return the answer with a document, or 304 if the route may answer 304 and `If-None-Match` names the present `ETag`."""
    if route.resource is not None and route.has_etag:
        headers["etag"] = etags.of(document, route.resource)
        known = _header(request, "if-none-match") if route.may_answer_304 else None
        if known is not None and etags.names(known, headers["etag"], is_strong=False):
            return web.Response(status=HTTPStatus.NOT_MODIFIED, headers=headers)
    return web.Response(status=status, headers=headers, body=_json(document), content_type="application/json")


def _add(app: web.Application, method: str, path: str, answer: Handler, *, has_head: bool = True) -> None:
    """Add a route, for GET with `has_head` also HEAD. Callbacks have no HEAD: a link preview with HEAD must permit nothing."""
    app.router.add_route(method, path, answer)
    if method == "GET" and has_head:
        app.router.add_route("HEAD", path, answer)


def _request_id(request: web.Request) -> str:
    """Return the client's `X-Request-Id` if it has the form of an id, else a new id."""
    given = request.headers.get("x-request-id", "")
    return given if _ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"


async def _set_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Set the common headers of an answer, and remove the header `Server`.

    The headers are the request id and the rate limit of the key or token. There are further headers if the key expires soon,
    or if the request uses a deprecated part of the API.
    """
    response.headers.pop("server", None)
    # aiohttp answers an unknown `Expect` before the request has an id.
    response.headers["x-request-id"] = request.get(REQUEST_ID) or _request_id(request)
    response.headers.update(admission.key_headers(request) | deprecation.headers(request.get(DEPRECATIONS, ())))


def _record(request: web.Request, status: int, took_s: float) -> None:
    """Log and count an answer. Metric labels have the route, not the path: clients can send any number of unknown paths."""
    resource = request.match_info.route.resource
    route, method = (resource.canonical, request.method) if resource else (NONE, NONE)
    metrics.API_REQUESTS.labels(route, method, f"{status // 100}xx").inc()
    metrics.API_SECONDS.labels(route).observe(took_s)
    log.info("api.answered", extra=_named(request) | {"status": status, "duration_ms": round(took_s * 1000, 1)})


def _named(request: web.Request) -> dict[str, Any]:
    """Return the fields of a log line that name a request: `method`, `route` (None: no such path) and `request_id`."""
    resource = request.match_info.route.resource
    return {"method": request.method, "route": resource.canonical if resource else None, "request_id": request[REQUEST_ID]}


def _json(document: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(document)
    except TypeError:  # an integer of more than 64 bits: jsonb returns 1e30 as one
        return json.dumps(document).encode()


async def _static(document: bytes, _: web.Request, content_type: str = "application/json") -> web.Response:
    return web.Response(body=document, content_type=content_type, headers=HEADERS)


async def _full(_: web.Request) -> web.StreamResponse:
    raise problems.unavailable("too many requests are in flight, so this one was not executed: try again")


def _path(route: Route, request: web.Request) -> dict[str, str]:
    for name, value in request.match_info.items():
        if not _ID.fullmatch(value):
            if route.method == "PUT":
                raise problems.invalid((name, mistakes.WORDS[mistakes.ID_PATTERN]))
            raise problems.not_found(_KINDS.get(name, name.removesuffix("_id")))
    return dict(request.match_info)


def _query(request: web.Request) -> dict[str, str]:
    """Return the query parameters; raise Refused for a repeated name, because one value would be ignored silently."""
    if repeated := [name for name in dict(request.query) if len(request.query.getall(name)) > 1]:
        raise problems.invalid(*((name, "is given more than once: give it once") for name in repeated))
    return dict(request.query)


def _header(request: web.Request, name: str) -> str | None:
    """Return the value of a header, which may have been sent in several lines; None if it was not sent."""
    lines = request.headers.getall(name, None)
    return None if lines is None else ", ".join(lines)


def _conditions(route: Route, request: web.Request) -> etags.Conditions:
    """Return the conditions for a route that may answer 412, else UNCONDITIONAL; raise Refused if it refuses conditions."""
    if route.refuses_conditions:
        etags.require_none(request.headers)
    if not route.may_answer_412:
        return etags.UNCONDITIONAL
    return etags.Conditions(_header(request, "if-match"), _header(request, "if-none-match"))


def _idempotency_key(request: web.Request) -> str | None:
    key = _header(request, "idempotency-key")
    if key is not None and not _KEY.fullmatch(key):
        raise problems.invalid(("Idempotency-Key", "must be 1 to 255 printable ASCII characters without spaces"))
    return key


def _of_http(exc: web.HTTPException, request: web.Request) -> problems.Refused:
    """Return the problem for a request that aiohttp itself refuses."""
    match exc:
        case web.HTTPMethodNotAllowed():
            # `redrive` in `/v1/dead-letters/redrive`, as in other fixed paths, is no id.
            allowed = ", ".join(sorted(route_table.methods(request.path) or exc.allowed_methods))
            return problems.Refused(405, "the path does not take this method: use one in Allow", headers={"allow": allowed})
        case web.HTTPRequestEntityTooLarge():
            return problems.Refused(413, f"the body has more than {request.client_max_size} bytes: send less in one request")
        case web.HTTPNotFound():
            return problems.Refused(404, "the path does not exist; /v1/openapi.json lists the paths")
    return problems.Refused(400, "the request is not valid HTTP/1.1: correct its first line and its headers")
