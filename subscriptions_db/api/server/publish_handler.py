"""Answer requests that publish events: admit, read, check, write to Kafka, answer.

Runs in the API, on its event loop. No request waits for a transaction in Postgres, except for the look-up of a key that is not
cached. The bytes of all such requests are bounded together, from the moment before a body is read until the answer is known.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pydantic
from aiohttp import web

from delivery import errors
from delivery.config import settings
from delivery.observability import metrics
from delivery.registry_model import TenantId
from subscriptions_db.api.admission import admission, request_bodies
from subscriptions_db.api.contract import etags, problems
from subscriptions_db.api.contract.deprecation import Deprecation
from subscriptions_db.api.contract.routes import Route
from subscriptions_db.api.publishing import bodies, checks, daily_quotas, known_topics, producer, tenant_rates
from subscriptions_db.api.publishing.publish_route import PublishQuery

log = logging.getLogger(__name__)

MAX_BYTES = 32 * 1024 * 1024
"""Maximum bytes of all request bodies that are being read, or whose events wait for Kafka. Further requests are refused before
their bodies are read. A process took 267 MiB more memory for 200 connections with bodies of 1 MB, while Kafka was away."""
MAX_SHARE_OF_REQUESTS = 0.75
"""Share of `api.max_waiting` that the publishing requests of all keys may take. They wait for Kafka. The rest is left for
requests that do not need Kafka."""
MAX_SHARE_OF_KEY = 0.25
"""Share of MAX_BYTES that the requests of one key may have. One body of a key is always read, if MAX_BYTES allows it."""
BODY_TIMEOUT_S = 5.0
"""Seconds in which a body must arrive, because it occupies a part of MAX_BYTES meanwhile. Half of `api.request_timeout_s` if
that is shorter."""
MAX_BYTES_ON_LOOP = 32 * 1024
"""Largest body that the event loop itself checks, in 6 ms at most. A thread checks a larger one, in up to 200 ms, during which
the loop answers other requests. The thread keeps the interpreter's lock while it reads one event. On a machine with a load of
10, four bodies of 1 MB stopped the loop for 0.2 to 0.5 s at most. Without the thread, they stopped it for 2.5 to 5.3 s."""
OFF = "publishing over HTTP is off, so nothing was published: the operator turns it on with the setting api.publishing"
NO_KEY = (
    "is not evaluated by this operation: nothing was published. The id of each event makes its repeat harmless: send the "
    "request without the header, and repeat events with the same ids"
)
"""The problem of a request with an `Idempotency-Key`. The API stores no answer under the key, and to ignore the header silently
would mislead its sender."""
UNLISTED = (
    "Kafka does not list its topics, and a topic of the request is not known yet. Nothing was published: send the request again"
)
UNCONFIRMED = "Kafka has not confirmed every event, and may have some: send the whole request again, with the same ids"


@dataclass
class _Cost:
    """The cost of checking a request. A refused request has a cost too."""

    events: int = 0
    """0: the body is an empty array, or could not be split into events."""
    cpu_s: float = 0.0


class Publishing:
    """Answer publishing requests. Lives on the event loop."""

    def __init__(
        self,
        config: settings.Settings,
        admitted: admission.Admission,
        write: daily_quotas.Write,
        place: request_bodies.Place,
        *,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """`write` adds published events to the counts that all processes of the API share.

        `place` is `WorkerThreads.place`: a context in which a request counts among the waiting requests of its customer, or of
        its key without a customer. The number of these requests is bounded. A request stays in the context until it is
        answered. The bodies of all requests in progress have at most `max_bytes` together.
        """
        self._place = place
        self._max_bytes = max_bytes
        self._max_in_progress = max(1, int(config.api.max_waiting * MAX_SHARE_OF_REQUESTS))
        self._admission = admitted
        self._is_on = config.api.publishing
        self._rules = checks.Rules.of(config)
        self._max_body_bytes = config.api.max_body_bytes
        self._producer = producer.EventProducer(config.kafka, config.api.request_timeout_s)
        self._topics = known_topics.KnownTopics(self._producer.topics)
        self._tenants = tenant_rates.TenantRates(config.api.max_tenant_events_per_s, admission.BURST_SHARE)
        self._quotas = daily_quotas.DailyQuotas(config.api.max_tenant_events_per_day, write)
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="checks")
        self._body_s = min(BODY_TIMEOUT_S, config.api.request_timeout_s / 2)
        self._bytes: collections.Counter[str] = collections.Counter()
        """The occupied bytes of each key."""
        self._in_progress = 0

    def close(self) -> None:
        """Wait for the checks of request bodies, then for Kafka's confirmations (`EventProducer.close`).

        Takes some seconds at most.
        """
        self._thread.shutdown()
        self._producer.close()

    async def end(self, app: web.Application) -> None:
        """Write the counts of published events at once, because the server stops."""
        await self._quotas.end(app)

    async def answer(
        self, route: Route, request: web.Request, query: Mapping[str, str], deprecations: set[Deprecation]
    ) -> dict[str, Any]:
        """Return the answer (a PublishedEvents as a dictionary) when Kafka has confirmed all events of the request.

        Add the deprecations of the request's parameters to `deprecations`. aiohttp raises HTTPRequestEntityTooLarge for a body
        that is too large. Raise Refused in these cases:

        1. Publishing is off, or the request is not admitted or not valid.
        2. A quota, a rate, or the maximum of bytes or of waiting requests is reached.
        3. Kafka does not list its topics, refuses an event, or does not confirm all events.
        """
        principal = await self._admission.admit(request.headers.get("authorization"), route, admission.noted_by(request))
        etags.require_none(request.headers)
        if "idempotency-key" in request.headers:
            raise problems.invalid(("Idempotency-Key", NO_KEY))
        if not self._is_on:
            raise problems.Refused(404, OFF)
        try:
            topic = PublishQuery.model_validate(dict(query), context=deprecations).topic
        except pydantic.ValidationError as exc:
            raise problems.from_validation(exc, PublishQuery) from None
        with self._place(principal.customer_id or principal.key_id), self._room(request, principal.key_id):
            events = await self._checked(request, topic, self._admission.charge(principal.key_id))
            checks.require_tenants(events, principal.tenants, self._rules)
            try:
                missing = await self._topics.missing(frozenset(event.topic for event in events))
            except errors.KafkaUnavailable as exc:
                log.warning(
                    "%d events of the API key or token %s are answered with 503 (%s). Nothing was published, and the answer "
                    "asks the sender to send them again", len(events), principal.key_id, exc,
                )  # fmt: skip
                raise problems.unavailable(UNLISTED) from exc
            checks.require_topics(events, missing)
            tenants = [event.tenant_id for event in events]
            self._note_limits(request, frozenset(tenants))
            self._quotas.require_room(tenants)
            # This check comes last, so that a refused request counts for no tenant.
            self._tenants.spend(tenants)
            try:
                # Also counts events of a failed request: otherwise events beside one that Kafka refuses would not count.
                accepted = await self._producer.publish(events, self._count)
            except errors.KafkaUnavailable as exc:
                # The text of Kafka goes to the log only: it may name hosts.
                log.warning(
                    "%d events of the API key or token %s are answered with 503 (%s). Kafka may have some of them, and the "
                    "answer asks the sender to send all again with the same ids", len(events), principal.key_id, exc,
                )  # fmt: skip
                raise problems.unavailable(UNCONFIRMED) from exc
        metrics.API_EVENTS.inc(len(accepted))
        return {"accepted": accepted}

    def _note_limits(self, request: web.Request, tenants: frozenset[TenantId]) -> None:
        """Store the limits of the request's tenants in the request, for the `RateLimit` headers of its answer."""
        if tenants:
            on = [limit for limit in (self._quotas, self._tenants) if limit.is_on]
            admission.note_tenants(request, [functools.partial(limit.room, tenants) for limit in on])

    def _count(self, events: Sequence[checks.Publication]) -> None:
        """Count events that Kafka has or may have in the daily quotas of their tenants."""
        self._quotas.count(event.tenant_id for event in events)

    async def _checked(
        self, request: web.Request, topic: str | None, charge: admission.EventCharge
    ) -> list[checks.Publication]:
        """Return the events of a request; raise Refused if an event is wrong, and as `_body` does.

        aiohttp raises HTTPRequestEntityTooLarge for a body that is too large. `charge` counts the request in the rate of its
        key, in three steps:

        1. At once, by the announced size of the body.
        2. When the body has arrived, by its real size, if this is larger.
        3. When the checks have ended, by the number of events and the CPU time of the checks, if these cost more.
        """
        # Before the body arrives: requests that come at once must not all pass before the first one is charged.
        charge.body(min(request.content_length or 0, self._max_body_bytes))
        body = await self._body(request)
        charge.body(len(body))
        cost = _Cost()
        read = functools.partial(bodies.read, request.content_type, request.raw_headers, body)
        work = functools.partial(_parsed, read, self._rules, topic, cost)
        try:
            if len(body) <= MAX_BYTES_ON_LOOP:
                return work()
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            charge.events(cost.events)
            charge.cpu(cost.cpu_s)

    @contextlib.contextmanager
    def _room(self, request: web.Request, key_id: str) -> Iterator[None]:
        """Count a request as in progress, and the bytes of its body as occupied, while the context is open.

        A body without a length, or a compressed body, counts as `api.max_body_bytes`. Raise Refused in three cases:

        1. 429: the key occupies bytes already, and with this body would exceed its share (MAX_SHARE_OF_KEY).
        2. 503: the maximum of requests of all keys is in progress (MAX_SHARE_OF_REQUESTS).
        3. 503: some key occupies bytes already, and with this body all keys together would exceed `max_bytes`.
        """
        is_known = request.content_length is not None and "content-encoding" not in request.headers
        size = min(request.content_length or 0, self._max_body_bytes) if is_known else self._max_body_bytes
        of_key, of_all = self._bytes[key_id], self._bytes.total()
        if of_key and of_key + size > self._max_bytes * MAX_SHARE_OF_KEY:
            headers = {"retry-after": str(problems.RETRY_AFTER_S)}
            problem = "too many bytes of your events arrive or wait for Kafka: nothing was published, try again"
            raise problems.Refused(429, problem, headers=headers)
        if self._in_progress >= self._max_in_progress:
            problem = "too many publishing requests arrive or wait for Kafka: nothing was published, try again"
            raise problems.unavailable(problem)
        if of_all and of_all + size > self._max_bytes:
            problem = "too many bytes of all publishers' events arrive or wait for Kafka: nothing was published, try again"
            raise problems.unavailable(problem)
        self._bytes[key_id] += size
        self._in_progress += 1
        try:
            yield
        finally:
            self._in_progress -= 1
            self._bytes[key_id] -= size
            if not self._bytes[key_id]:
                del self._bytes[key_id]

    async def _body(self, request: web.Request) -> bytes:
        """Return the body of a request; raise Refused with 408 if it is slow, and with 400 as `request_bodies.read` does."""
        try:
            async with asyncio.timeout(self._body_s):
                return await request_bodies.read(request)
        except TimeoutError:
            detail = (
                f"the body did not arrive in {self._body_s:g} s, so nothing was published: send it faster, or in smaller parts"
            )
            raise problems.Refused(408, detail) from None


def _parsed(
    read: Callable[[], bodies.EventsOfBody], rules: checks.Rules, topic: str | None, cost: _Cost
) -> list[checks.Publication]:
    """Return the events that `read` finds in a body; raise Refused if one is wrong. Set `cost` in both cases."""
    began_s = time.thread_time()
    try:
        found = read()
        cost.events = len(found.events)
        return checks.checked(found, rules, topic=topic, now_ms=round(time.time() * 1000))
    finally:
        cost.cpu_s = time.thread_time() - began_s
