"""Answer requests that publish events: admit, read, check, write to Kafka, answer.

Runs in the API, on its event loop, without a transaction in Postgres. The bytes of all such requests are bounded together, from
the moment before a body is read until its events are confirmed.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pydantic
from aiohttp import web

from delivery import errors
from delivery.config import settings
from delivery.observability import metrics
from subscriptions_db.api.contract import problems
from subscriptions_db.api.contract.routes import Route
from subscriptions_db.api.publishing import bodies, checks, known_topics, producer
from subscriptions_db.api.publishing.routes import PublishQuery
from subscriptions_db.api.server import admission

log = logging.getLogger(__name__)

MAX_BYTES = 32 * 1024 * 1024
"""Most bytes of bodies that are read, or wait for Kafka. Further requests are refused before their bodies are read. A process
took 267 MiB more memory for 200 connections with bodies of 1 MB, while Kafka was away."""
UNCONFIRMED = "Kafka has not confirmed every event, and may have some: send the whole request again, with the same ids"


class Publishing:
    """Answers publishing requests. Lives on the event loop."""

    def __init__(self, config: settings.Settings, admitted: admission.Admission) -> None:
        self._admission = admitted
        self._rules = checks.Rules.of(config)
        self._max_body_bytes = config.api.max_body_bytes
        self._producer = producer.EventProducer(config.kafka, config.api.request_timeout_s)
        self._topics = known_topics.KnownTopics(self._producer.topics)
        self._bytes = 0

    def close(self) -> None:
        """Close the connections to Kafka."""
        self._producer.close()

    async def answer(self, route: Route, request: web.Request, query: Mapping[str, str]) -> dict[str, Any]:
        """Return the answer when Kafka has confirmed all events of the request; raise Refused otherwise."""
        principal = await self._admission.admit(request.headers.get("authorization"), route, admission.noted_by(request))
        try:
            topic = PublishQuery.model_validate(dict(query)).topic
        except pydantic.ValidationError as exc:
            raise problems.from_validation(exc, PublishQuery) from None
        with self._room(request):
            found = bodies.read(request.content_type, request.raw_headers, await request.read())
            self._admission.count_events(principal.key_id, max(0, len(found.events) - 1))
            events = checks.checked(found, self._rules, topic=topic, now_ms=round(time.time() * 1000))
            checks.require_tenants(found, events, principal.tenants)
            try:
                checks.require_topics(found, events, await self._topics.missing(frozenset(event.topic for event in events)))
                accepted = await self._producer.publish(events)
            except errors.KafkaUnavailable as exc:
                # The text of Kafka goes to the log only: it may name hosts.
                log.warning("a request to publish %d events is answered with 503: %s", len(events), exc)
                raise problems.unavailable(UNCONFIRMED) from exc
        metrics.API_EVENTS.inc(len(accepted))
        return {"accepted": accepted}

    @contextlib.contextmanager
    def _room(self, request: web.Request) -> Iterator[None]:
        """Occupy the bytes of a request's body; raise Refused with 503 if too many are occupied.

        A body without a length, or a compressed one, may have `api.max_body_bytes`.
        """
        is_known = request.content_length is not None and "content-encoding" not in request.headers
        size = min(request.content_length or 0, self._max_body_bytes) if is_known else self._max_body_bytes
        if self._bytes and self._bytes + size > MAX_BYTES:
            raise problems.unavailable("too many events wait for Kafka: try again")
        self._bytes += size
        try:
            yield
        finally:
            self._bytes -= size
