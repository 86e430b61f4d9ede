"""Send a test event to an endpoint with the code of real deliveries: the same guard, authentication and signatures.

The endpoint's own rate and its own timeout do not apply. The settings and server_bounds.py limit the attempt.

Runs in the API, in four steps, so that a slow endpoint occupies no connection to Postgres:

1. The request's transaction builds the test event.
2. The event loop checks the rate of test events to the endpoint.
3. A second transaction writes the audit entry.
4. The event loop sends the test event.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import datetime as dt
import functools
import math
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import cachetools
import orjson
from pydantic import Field

from delivery import errors
from delivery.config import settings
from delivery.model import Delivery, Event, EventId, LeaveReason, Record
from delivery.registry_model import (
    CustomerId,
    DeliveryMode,
    Endpoint,
    EndpointId,
    Scope,
    Subscription,
    SubscriptionId,
    TenantId,
)
from delivery.webhooks.batching.segment import Packed
from delivery.webhooks.http import guard, origin, transport
from delivery.webhooks.scheduling import limits
from delivery.webhooks.sending import batch_payload, payload, sender
from subscriptions_db import described, disclosure, server_bounds
from subscriptions_db.api.contract import crud, problems, request_audit, routes, schemas
from subscriptions_db.api.contract.routes import Call, PendingSend, Route
from subscriptions_db.api.registry import event_types as catalogue
from subscriptions_db.manifest import event_types, mistakes, parts
from subscriptions_db.snapshot import registry_reader

MAX_SHARE_OF_CUSTOMER = 0.5
"""Share of the maximum of test events and questions in flight that one customer's endpoints may take. The rest is left for
other customers."""
MAX_KNOWN = 10_000
"""Maximum endpoints whose rate of test events one process remembers."""
SOURCE, TENANT = "fanout.test", TenantId("fanout-test")
"""Source and tenant of every test event."""
TEST_SUBSCRIPTION = SubscriptionId("test")
"""The subscription id of every test event, in place of the id of a registered subscription."""


class TestEvent(parts.ManifestPart):
    """The test event: an event of the tenant `fanout-test`."""

    __test__ = False  # pytest must not collect it

    type: str = Field("fanout.test", min_length=1, max_length=255, pattern=mistakes.VISIBLE_ASCII_PATTERN)
    """The type of the event."""
    data: schemas.Payload = Field(default_factory=lambda: {"test": True})
    """The payload. Omitted: the first example of the type in the catalogue; without an example, `{"test": true}`."""


class TestResult(described.DescribedModel):
    """The result of a test event's only attempt. The archive does not have the attempt, and a failure is not retried."""

    __test__ = False  # pytest must not collect it

    webhook_id: str
    """The `webhook-id` of the request."""
    is_delivered: bool
    """True: the endpoint accepted the event."""
    status: int | None
    """The HTTP status. Null: no response arrived."""
    error_class: str | None
    """The error class of the attempt. Null: the endpoint accepted the event."""
    detail: str
    """The reason why no response arrived, for people. Empty: a response arrived."""
    response: str
    """The beginning of the response body. Empty: no response arrived, or it had no body."""
    duration_ms: float
    """Milliseconds from the start of the request to its result."""


class TestEventSender:
    """Send test events to endpoints, and questions for permission to receivers. Lives on the event loop."""

    __test__ = False  # pytest must not collect it

    def __init__(
        self,
        network: sender.RequestTransport,
        address_guard: guard.Guard,
        timeout_s: float,
        *,
        max_per_s: float = server_bounds.DEFAULT.test_events_per_s,
        max_at_once: int = server_bounds.DEFAULT.test_events_at_once,
    ) -> None:
        """Each endpoint gets at most `max_per_s` test events and questions a second from this process of the API.

        At most `max_at_once` test events and questions of this process are in flight, to all endpoints together. To the
        endpoints of one customer, at most the share MAX_SHARE_OF_CUSTOMER of `max_at_once` is in flight. An attempt takes at
        most `timeout_s` seconds.
        """
        self._max_per_s = max_per_s
        self._max_at_once = max_at_once
        self._network = network
        self.timeout_s = timeout_s
        """Most seconds of an attempt."""
        self._sender = sender.Sender(network, address_guard, timeout_s=timeout_s, clock=time.time)
        self._paces: cachetools.LRUCache[EndpointId, limits.Pace] = cachetools.LRUCache(MAX_KNOWN)
        self._of_customers: collections.Counter[CustomerId] = collections.Counter()
        """The test events and questions in flight to the endpoints of each customer."""

    async def send(self, sending: PendingSend, record: Callable[[], Awaitable[None]]) -> TestResult:
        """Call `record`, which writes the audit entry; then make one attempt for a test event, and return its result.

        An error of `record` is raised to the caller, and nothing is sent.

        Raise Refused, without a call of `record`:

        * 429: the endpoint would get more than `max_per_s` test events and questions a second, or too many are in flight to
          the endpoints of its customer.
        * 503: `max_at_once` test events and questions are in flight.
        """
        with self._within_limits(sending.delivery.endpoint):
            await record()
            attempt = await self._sender.attempt(sending.delivery, 1)
        return TestResult(
            webhook_id=sending.delivery.webhook_id,
            is_delivered=attempt.error_class is None,
            status=attempt.status,
            error_class=disclosure.word(attempt.error_class),
            detail=attempt.detail,
            response=attempt.response.decode(errors="replace"),
            duration_ms=round(attempt.duration_ms, 1),
        )

    async def ask(self, to: origin.Target, record: Callable[[], Awaitable[None]]) -> transport.Response | errors.AttemptFailed:
        """Ask a receiver for permission to deliver: call `record`, which stores the question, then send an OPTIONS request.

        Return the receiver's response, or the error of the attempt. Raise Refused for the reasons of `send`. In these cases
        `record` is not called, because a stored question would replace an earlier one.
        """
        with self._within_limits(to.endpoint):
            await record()
            try:
                return await self._network.post(to, b"", b"", self.timeout_s)
            except errors.AttemptFailed as exc:
                return exc

    @contextlib.contextmanager
    def _within_limits(self, endpoint: Endpoint) -> Iterator[None]:
        pace = self._paces.setdefault(endpoint.endpoint_id, limits.Pace(self._max_per_s))
        now = asyncio.get_running_loop().time()
        if (wait_s := pace.wait_s(now)) > 0:
            raise problems.Refused(
                429,
                "one endpoint gets at most one test event or validation request a second, and nothing was sent: try again in "
                "a second",
                headers={"retry-after": str(math.ceil(wait_s))},
            )
        if self._of_customers.total() >= self._max_at_once:
            raise problems.unavailable(
                "too many test events and validation requests are in flight, and nothing was sent: try again"
            )
        owner = endpoint.customer_id
        if self._of_customers[owner] >= max(1, int(self._max_at_once * MAX_SHARE_OF_CUSTOMER)):
            raise problems.Refused(
                429,
                "too many test events and validation requests to your endpoints are in flight, and nothing was sent: try again",
                headers={"retry-after": str(problems.RETRY_AFTER_S)},
            )
        pace.consume(now)
        self._of_customers[owner] += 1
        try:
            yield
        finally:
            self._of_customers[owner] -= 1
            if not self._of_customers[owner]:
                del self._of_customers[owner]


@contextlib.asynccontextmanager
async def open_sender(
    config: settings.DeliverySettings,
    address_guard: guard.Guard,
    bounds: server_bounds.ServerBounds = server_bounds.DEFAULT,
) -> AsyncIterator[TestEventSender]:
    """Yield a sender of test events with connections of its own, which are closed at the end of the context."""
    network = transport.Transport(address_guard, max_connections=bounds.test_events_at_once)
    try:
        yield TestEventSender(
            network,
            address_guard,
            config.attempt_timeout_s,
            max_per_s=bounds.test_events_per_s,
            max_at_once=bounds.test_events_at_once,
        )
    finally:
        await network.close()


def send(call: Call) -> PendingSend:
    """Build a test event, whatever the endpoint's status. `TestEventSender.send` sends it once the audit entry is written.

    Raise RegistrationError if the catalogue's example of the type cannot be sent. Raise Refused:

    * 404: there is no such endpoint.
    * 409: the endpoint cannot be used, or its receiver has not permitted deliveries.
    """
    endpoint_id, wanted = call.path["endpoint_id"], call.body_as(TestEvent)
    crud.require_permitted(crud.existing_row(call, "endpoint", endpoint_id))
    read = registry_reader.read_rows(call.connection, call.ring, call.guard, endpoint_ids=[endpoint_id], subscription_ids=[])
    endpoint = read.endpoints[EndpointId(endpoint_id)]
    if endpoint.fault:
        advice = "nothing was sent: correct the endpoint, or ask the operator"
        raise problems.Refused(409, f"the endpoint cannot be used ({endpoint.fault}), and {advice}")
    delivery = _delivery(endpoint, _with_example(call, wanted), dt.datetime.now(dt.UTC))
    return PendingSend(delivery, functools.partial(_record, endpoint_id))


def _record(endpoint_id: str, call: Call) -> None:
    row = crud.existing_row(call, "endpoint", endpoint_id)  # the endpoint may be deleted by now
    request_audit.write(call, "test", "endpoint", endpoint_id, customer_id=row["customer"])


def _with_example(call: Call, wanted: TestEvent) -> TestEvent:
    row = None if "data" in wanted.model_fields_set else catalogue.known(call, wanted.type)
    if row is None or not row["examples"]:
        return wanted
    event_types.check(None, row["examples"])  # plain SQL can register an invalid example
    return wanted.model_copy(update={"data": row["examples"][0]})


def _delivery(endpoint: Endpoint, wanted: TestEvent, now: dt.datetime) -> Delivery | batch_payload.BatchDelivery:
    event = Event(
        event_id=EventId(f"test_{secrets.token_hex(8)}"),
        event_type=wanted.type,
        source=SOURCE,
        tenant_id=TENANT,
        sub_tenant_id=None,
        time=now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        data=orjson.dumps(wanted.data),
        content=wanted.data,
        record=Record(topic=SOURCE, partition=0, offset=0, appended_at_ms=int(now.timestamp() * 1000), value=None),
    )
    if endpoint.mode is DeliveryMode.BATCH:
        packed = Packed(*event[:7], event.record.topic, 0, 0, event.record.appended_at_ms)
        webhook_id = batch_payload.webhook_id(endpoint.endpoint_id, [packed], [TEST_SUBSCRIPTION])
        empty = batch_payload.BatchDelivery(
            endpoint, webhook_id, b"", b"", b"", [packed], [TEST_SUBSCRIPTION], LeaveReason.COUNT
        )
        return batch_payload.with_content(empty)
    content = payload.content(event, endpoint.content_mode)
    through = Subscription(
        subscription_id=TEST_SUBSCRIPTION,
        endpoint_id=endpoint.endpoint_id,
        event_type=wanted.type,
        scope=Scope(everything=True),
    )
    return Delivery(event, through, endpoint, payload.webhook_id(event, TEST_SUBSCRIPTION), content.body, content.headers)


ROUTES = (
    Route(
        method="POST", path="/v1/endpoints/{endpoint_id}/test", name="testEndpoint",
        summary="Send a test event, signed and guarded as every delivery, and show the result.",
        scopes=routes.REGISTRARS, handler=send, body=TestEvent, answer=TestResult, needs_permission=True,
    ),
)  # fmt: skip
