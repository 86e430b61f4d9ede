"""Generate the registry and the events of the demo from a seed.

The same seed gives the same registry and events, except for times and ports.

Runs in `fanout` commands.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from delivery.registry_model import SigningKey
from delivery.secret import Secret
from delivery.webhooks.sending import signing
from fanout.kafka import publishing
from fanout.local import receiver

TENANTS = 200
"""Number of tenants: tenant-1 to tenant-200."""
ENDPOINTS = 60
"""Number of endpoints that get single events. Endpoints in batch mode come in addition."""
CUSTOMERS = 12
"""Number of customers."""
TOPIC_PREFIX = "events."
EVENT_TYPES = (
    "order.created", "order.paid", "order.cancelled", "order.item.added", "invoice.issued", "invoice.paid",
    "user.created", "user.deleted", "shipment.sent", "shipment.delivered", "payment.failed", "stock.low",
)  # fmt: skip
FAILING_ENDPOINTS = {"endpoint-7", "batches-failing"}
"""Endpoints that answer 500 until their customer has polled its dead letters. All their deliveries become dead letters."""
FAILING_CUSTOMER = "customer-8"
"""Customer of FAILING_ENDPOINTS."""
HANGING_ENDPOINT = "endpoint-8"
"""Endpoint that accepts requests and never answers."""
RECOVERING_ENDPOINTS = {"endpoint-9", "batches-recovering"}
"""Endpoints that answer 503 until the registry changes."""
DISABLED_ENDPOINT = "endpoint-13"
"""Endpoint that is disabled during the whole demo."""
GIVE_UP_EARLY = {"max_age_s": 10, "timeout_s": 3}
"""Retry settings of endpoints whose deliveries are given up during the demo. The demo cannot wait for days of retries."""
REPAIRED_MAX_AGE_S = 600
"""The setting `retry.max_age_s` of FAILING_ENDPOINTS after their repair. The retry lane has a micro-batch each second. A
recovered endpoint gets one delivery in the first micro-batch, then 2, then 4, and so on. So hundreds of redriven deliveries may
need more time than GIVE_UP_EARLY permits."""
RETRY_OFTEN = {"schedule_s": [1, *[2] * 20]}
"""Retry settings of RECOVERING_ENDPOINTS: 21 retries, nearly all two seconds apart."""
REJECTING_ENDPOINT = "batches-rejecting"
"""Endpoint that accepts every batch, and rejects some of its events."""
PAUSED_ENDPOINTS = ("endpoint-11", "batches-paused")
"""Endpoints that the first change of the registry pauses, and the second resumes."""
SUSPENDED_TENANT = "tenant-200"
"""Tenant whose events the job rejects."""


@dataclass(slots=True)
class Repairs:
    """The groups of endpoints that have been repaired, so that they accept requests."""

    recovering: bool = False
    """True: RECOVERING_ENDPOINTS accept requests."""
    failing: bool = False
    """True: FAILING_ENDPOINTS accept requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedEvent:
    """An event, as the demo published it."""

    event_id: str
    source: str
    event_type: str
    tenant_id: str
    sub_tenant_id: str | None
    time: str
    content: dict[str, Any]
    payload: bytes
    """JSON of `content`: the record's value, or the `data` of a CloudEvent in structured mode."""
    message: publishing.Message


def registry(receiver_url: str, rng: random.Random) -> dict[str, Any]:
    """Return the manifest with which the demo begins: its tenants, customers, endpoints and subscriptions.

    `receiver_url` is the base of all endpoints' URLs. The tenants in some scopes, and the signing secrets, come from `rng`.
    """
    tenants = [
        {"id": f"tenant-{n}", **({"sub_tenants": [100, 200, 300]} if n % 10 == 2 else {})} for n in range(1, TENANTS + 1)
    ]
    tenants[-1]["status"] = "suspended"
    endpoints = [_endpoint(n, receiver_url, rng) for n in range(1, ENDPOINTS + 1)]
    subscriptions = [
        {"id": f"sub-{n}", "endpoint": f"endpoint-{n}", "event_type": EVENT_TYPES[n % len(EVENT_TYPES)], **_scope(n, rng)}
        for n in range(1, ENDPOINTS + 1)
    ]
    subscriptions += [
        {"id": "orders-of-all", "endpoint": "endpoint-1", "event_type": "order.*", "everything": True,
         "except_tenants": ["tenant-1", "tenant-2"], "filter": {"data": {"amount": [{"numeric": [">=", 800]}]}}},
        {"id": "big-or-vip", "endpoint": "endpoint-2", "event_type": "*", "tenants": ["tenant-1", "tenant-3"],
         "filter": {"$or": [{"data": {"amount": [{"numeric": [">", 900]}]}}, {"data": {"tags": ["vip"]}}]}},
        {"id": "twice-to-one", "endpoint": "endpoint-3", "event_type": "invoice.*", "tenants": ["tenant-1"]},
        {"id": "paused", "endpoint": "endpoint-4", "event_type": "order.paid", "everything": True, "status": "paused"},
        {"id": "failing", "endpoint": "endpoint-7", "event_type": "payment.failed", "everything": True},
    ]  # fmt: skip
    batched = _batch_endpoints(receiver_url, rng)
    endpoints += batched
    subscriptions += [
        {"id": f"sub-{row['id']}", "endpoint": row["id"], "event_type": EVENT_TYPES[-n], "everything": True}
        for n, row in enumerate(batched)
    ]
    subscriptions += [
        {"id": "many-in-batches", "endpoint": "batches-by-count", "event_type": "order.*", "everything": True},
        {"id": "twice-in-batches", "endpoint": "batches-by-time", "event_type": "user.*", "tenants": ["tenant-1", "tenant-2"]},
    ]
    return {
        "tenants": tenants,
        "customers": [{"id": f"customer-{n}"} for n in range(1, CUSTOMERS + 1)],
        "endpoints": endpoints,
        "subscriptions": subscriptions,
    }


def answer(path: str, repairs: Repairs) -> int | None:
    """Return the status with which the endpoint at `path` answers a request now; None: it never answers."""
    name = path.rsplit("/", 1)[1]
    if name in FAILING_ENDPOINTS and not repairs.failing:
        return 500
    if name in RECOVERING_ENDPOINTS and not repairs.recovering:
        return 503
    return None if name == HANGING_ENDPOINT else 200


def changed(document: dict[str, Any], receiver_url: str) -> dict[str, Any]:
    """Return a copy of a manifest with the demo's first change: six endpoints and five subscriptions differ.

    Two endpoints get another URL, two are paused, and two get a new signing secret and keep their old ones. One subscription is
    resumed, one gets another filter, two are deleted, and one is added.
    """
    endpoints = {row["id"]: dict(row) for row in document["endpoints"]}
    subscriptions = {row["id"]: dict(row) for row in document["subscriptions"]}
    endpoints["endpoint-10"]["url"] = f"{receiver_url}/moved/endpoint-10"
    endpoints["batches-by-time"]["url"] = f"{receiver_url}/moved/batches-by-time"
    for name in PAUSED_ENDPOINTS:
        endpoints[name]["status"] = "paused"
    for name in ("endpoint-12", "batches-gzip"):
        rotated = endpoints[name]
        rotated["signing_secrets"] = [_secret(random.Random(f"rotated {name}")), *rotated["signing_secrets"]]
    subscriptions["paused"]["status"] = "active"
    subscriptions["big-or-vip"]["filter"] = {"data": {"tags": [{"anything-but": "vip"}]}}
    for name in ("twice-to-one", "twice-in-batches"):
        del subscriptions[name]
    subscriptions["added"] = {
        "id": "added", "endpoint": "endpoint-5", "event_type": "user.*", "everything": True, "except_tenants": ["tenant-2"]
    }  # fmt: skip
    return document | {"endpoints": list(endpoints.values()), "subscriptions": list(subscriptions.values())}


def resumed(document: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a manifest with the demo's second change: PAUSED_ENDPOINTS are active."""
    endpoints = [row | ({"status": "active"} if row["id"] in PAUSED_ENDPOINTS else {}) for row in document["endpoints"]]
    return document | {"endpoints": endpoints}


def rejects(path: str, event: receiver.BatchEvent) -> bool:
    """Return True if the endpoint at `path` rejects an event of a batch. REJECTING_ENDPOINT rejects about every tenth event."""
    return path.endswith(f"/{REJECTING_ENDPOINT}") and event.event_id.endswith("7")


def events(count: int, rng: random.Random) -> Iterator[PublishedEvent]:
    """Yield `count` events: plain JSON, or CloudEvents in binary or structured mode. Few tenants have most of the events."""
    for number in range(count):
        event_type = rng.choice(EVENT_TYPES)
        tenant = min(int(rng.paretovariate(0.6)), TENANTS - 1)
        content = {
            "number": number,
            "amount": rng.randint(1, 1000),
            "tags": rng.sample(["vip", "new", "eu", "us"], k=rng.randint(0, 2)),
            "note": "ä" * rng.randint(0, 100),
        }
        yield _event(
            rng.choice(["plain", "plain", "binary", "structured"]),
            event_id=f"event-{number}",
            event_type=event_type,
            tenant_id=f"tenant-{tenant}",
            sub_tenant_id=rng.choice(["100", "200", "300", None]) if tenant % 10 == 2 else None,
            content=content,
        )


def bad_records() -> list[publishing.Message]:
    """Return records that are no events of an active tenant. The job must reject each of them without delaying any event."""
    topic = TOPIC_PREFIX + EVENT_TYPES[0]
    values = [
        b"not JSON",
        None,
        b"{}",
        b"[" * 10_000,
        b'{"tenant_id":"nobody"}',
        b'{"tenant_id":"%s"}' % SUSPENDED_TENANT.encode(),
    ]
    return [publishing.Message(topic=topic, value=value) for value in values]


def _endpoint(number: int, receiver_url: str, rng: random.Random) -> dict[str, Any]:
    kinds: list[dict[str, Any]] = [
        {},
        {"auth": {"kind": "basic", "username": "fanout", "secret": f"password {number}"}},
        {"auth": {"kind": "bearer", "secret": f"token-{number}"}},
        {"auth": {"kind": "api_key", "header": "X-Api-Key", "secret": f"key-{number}"}},
    ]
    row = {
        "id": f"endpoint-{number}",
        "customer": f"customer-{number % CUSTOMERS + 1}",
        "url": f"{receiver_url}/endpoint-{number}",
        "signing_secrets": [_secret(rng)],
        **kinds[number % len(kinds)],
    }
    if row["id"] in {"endpoint-7", HANGING_ENDPOINT, DISABLED_ENDPOINT}:
        row["retry"] = GIVE_UP_EARLY
    if row["id"] in RECOVERING_ENDPOINTS:
        row["retry"] = RETRY_OFTEN
    if row["id"] == DISABLED_ENDPOINT:
        row["status"] = "disabled"
    return row


def _batch_endpoints(receiver_url: str, rng: random.Random) -> list[dict[str, Any]]:
    """Return the endpoints in batch mode.

    There is one for each limit of a batch, for CloudEvents, for compression, for a pause, and for each fault.
    """
    bounds: dict[str, dict[str, Any]] = {
        "by-count": {"max_events": 50, "max_wait_s": 5},
        "by-time": {"max_wait_s": 2},
        "by-bytes": {"max_bytes": 5_000, "max_wait_s": 5},
        "cloudevents": {},
        "gzip": {"gzip": True},
        "paused": {"max_wait_s": 3},
        "rejecting": {},
        "failing": {"max_wait_s": 2},
        "recovering": {},
    }
    return [
        {
            "id": f"batches-{name}",
            "customer": f"customer-{number % CUSTOMERS + 1}",
            "url": f"{receiver_url}/batches-{name}",
            "mode": "batch",
            "batch": batch,
            "content_mode": "cloudevents_structured" if name in {"cloudevents", "by-bytes"} else "standard",
            "retry": {"failing": GIVE_UP_EARLY, "recovering": RETRY_OFTEN}.get(name, {}),
            "signing_secrets": [_secret(rng)],
        }
        for number, (name, batch) in enumerate(bounds.items())
    ]


def _secret(rng: random.Random) -> str:
    # From the seed, so that the receivers of the demo know the secret. The platform uses the randomness of the system.
    return signing.to_text(SigningKey(secret=Secret(rng.randbytes(32))))


def _scope(number: int, rng: random.Random) -> dict[str, Any]:
    tenants = [f"tenant-{n}" for n in range(1, TENANTS)]
    if number % 5 == 0:
        return {"everything": True, "except_sub_tenants": {"tenant-2": ["300"]}}
    if number % 5 == 1:
        return {"tenants": rng.sample(tenants, 100)}
    if number % 5 == 2:
        return {"sub_tenants": {"tenant-2": ["100", "200"], "tenant-12": ["300"]}}
    return {"tenants": [*rng.sample(tenants[1:], 4), "tenant-1"]}


def _event(
    form: str, *, event_id: str, event_type: str, tenant_id: str, sub_tenant_id: str | None, content: dict[str, Any]
) -> PublishedEvent:
    topic = TOPIC_PREFIX + event_type
    time = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
    source = "/demo"
    headers: tuple[tuple[str, bytes], ...] = ()
    if form == "plain":
        source = topic
        content = content | {"id": event_id, "tenant_id": tenant_id, "sub_tenant_id": sub_tenant_id, "time": time}
        payload = value = orjson.dumps(content)
    else:
        attributes = {
            "specversion": "1.0",
            "id": event_id,
            "type": event_type,
            "source": source,
            "tenantid": tenant_id,
            "time": time,
        }
        if sub_tenant_id is not None:
            attributes["subtenantid"] = sub_tenant_id
        payload = value = orjson.dumps(content)
        if form == "binary":
            headers = tuple((f"ce_{name}", text.encode()) for name, text in attributes.items())
        else:
            value = orjson.dumps(attributes | {"data": content})
            headers = (("content-type", b"application/cloudevents+json"),)
    return PublishedEvent(
        event_id=event_id,
        source=source,
        event_type=event_type,
        tenant_id=tenant_id,
        sub_tenant_id=sub_tenant_id,
        time=time,
        content=content,
        payload=payload,
        message=publishing.Message(topic=topic, key=tenant_id.encode(), value=value, headers=headers),
    )
