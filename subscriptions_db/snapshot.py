"""Read the registry for the job: all of it, what changed since a revision, or what an event can be due to. Never a half.

Runs on the driver, and in executors that look up. Each read is one transaction at one snapshot of Postgres (REPEATABLE READ,
read only). A row that cannot be used is quarantined: it is returned with its fault, and everybody else is served.
"""

from __future__ import annotations

import collections
import functools
import json
import logging
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from delivery import errors
from delivery.model import (
    Auth,
    AuthKind,
    Batching,
    ContentMode,
    CustomerId,
    DeliveryMode,
    Endpoint,
    EndpointId,
    EndpointStatus,
    Retrying,
    Revision,
    Scope,
    Subscription,
    SubscriptionId,
    SubscriptionStatus,
    SubTenantId,
    TenantId,
    TenantStatus,
    Tls,
)
from delivery.secret import Secret
from delivery.webhooks import filters, guard
from delivery.webhooks.snapshot import Snapshot, SnapshotChanges
from subscriptions_db import checks, connect, endpoint_secrets, keyring
from subscriptions_db.endpoint_secrets import Opened
from subscriptions_db.sql import query

log = logging.getLogger(__name__)

Id = TypeVar("Id", bound=str)
Row = TypeVar("Row")


def read_full(connection: connect.Connection, ring: keyring.KeyRing, address_guard: guard.Guard) -> Snapshot:
    """Return the whole registry; raise RegistryUnavailable."""
    with connect.one_moment(connection):
        return Snapshot(
            revision=_revisions(connection)[1],
            tenants=dict(_tenants(connection, None)),
            endpoints=dict(_endpoints(connection, None, ring, address_guard)),
            subscriptions=dict(_subscriptions(connection, None)),
        )


def read_changes(
    connection: connect.Connection, ring: keyring.KeyRing, address_guard: guard.Guard, *, since: Revision
) -> SnapshotChanges | None:
    """Return what changed after `since`, or None when the log does not reach back and all must be read."""
    with connect.one_moment(connection):
        oldest, newest = _revisions(connection)
        if newest < since or oldest > since + 1:
            return None
        changed: collections.defaultdict[str, list[str]] = collections.defaultdict(list)
        if newest > since:
            for row in connection.execute(query("changes_since"), {"since": since}):
                changed[row["entity"]].append(row["entity_id"])
        tenants, endpoints, subscriptions = changed["tenant"], changed["endpoint"], changed["subscription"]
        return SnapshotChanges(
            since=since,
            revision=newest,
            tenants=_with_deleted(map(TenantId, tenants), _tenants(connection, tenants)),
            endpoints=_with_deleted(map(EndpointId, endpoints), _endpoints(connection, endpoints, ring, address_guard)),
            subscriptions=_with_deleted(map(SubscriptionId, subscriptions), _subscriptions(connection, subscriptions)),
        )


def read_candidates(
    connection: connect.Connection,
    ring: keyring.KeyRing,
    address_guard: guard.Guard,
    *,
    event_type: str,
    tenant_id: TenantId | None,
) -> Snapshot:
    """Return the tenant and the subscriptions that name it; without a tenant, those about everything.

    Of those, what can match the event type, with their endpoints. Of each scope, the tenant's part. For most pairs of tenant
    and type there is nobody, which is known after one statement; the others' rows are as of one moment, of that revision or
    a later one.
    """
    asked = {"patterns": _patterns(event_type), "tenant_id": tenant_id}
    statement = query("about_everything" if tenant_id is None else "naming_the_tenant")
    with connect.translating():
        [found] = connection.execute(statement, asked).fetchall()
    status = found["tenant_status"]
    known = Snapshot(
        revision=Revision(found["revision"]),
        tenants={} if tenant_id is None or status is None else {tenant_id: TenantStatus(status)},
    )
    if not found["subscription_ids"]:
        return known
    with connection.pipeline(), connect.one_moment(connection):
        subscriptions = dict(_subscriptions(connection, found["subscription_ids"], tenant_id))
        used: list[str] = sorted({row.endpoint_id for row in subscriptions.values()})
        return replace(known, subscriptions=subscriptions, endpoints=dict(_endpoints(connection, used, ring, address_guard)))


def read_endpoint(
    connection: connect.Connection, ring: keyring.KeyRing, address_guard: guard.Guard, endpoint_id: EndpointId
) -> Snapshot:
    """Return an endpoint, if it is registered, and the subscriptions that lead to it, as of one moment."""
    with connect.one_moment(connection):
        [found] = connection.execute(query("leading_to_the_endpoint"), {"endpoint_id": endpoint_id}).fetchall()
        return Snapshot(
            revision=Revision(found["revision"]),
            endpoints=dict(_endpoints(connection, [endpoint_id], ring, address_guard)),
            subscriptions=dict(_subscriptions(connection, found["subscription_ids"])),
        )


def read_routes(connection: connect.Connection, endpoint_id: EndpointId) -> Snapshot:
    """Return all that leads events to an endpoint, as of one moment: to route by, not to send by. No secret is read."""
    with connect.one_moment(connection):
        [found] = connection.execute(query("leading_to_the_endpoint"), {"endpoint_id": endpoint_id}).fetchall()
        return Snapshot(
            revision=Revision(found["revision"]),
            tenants=dict(_tenants(connection, None)),
            endpoints={
                EndpointId(row["endpoint_id"]): _unsendable(row)
                for row in connection.execute(query("endpoints"), {"ids": [endpoint_id]})
            },
            subscriptions=dict(_subscriptions(connection, found["subscription_ids"])),
        )


def read_rows(
    connection: connect.Connection,
    ring: keyring.KeyRing,
    address_guard: guard.Guard,
    *,
    endpoint_ids: list[str],
    subscription_ids: list[str],
) -> Snapshot:
    """Return these rows, as the job has them, in the caller's transaction and without a revision."""
    return Snapshot(
        revision=Revision(0),
        endpoints=dict(_endpoints(connection, endpoint_ids, ring, address_guard)),
        subscriptions=dict(_subscriptions(connection, subscription_ids)),
    )


def _patterns(event_type: str) -> list[str]:
    """Return every event type pattern that matches: the type itself, and the wildcards, which end at a dot."""
    prefixes = [event_type[: place + 1] for place, letter in enumerate(event_type) if letter == "."]
    return [event_type, "*", *(f"{prefix}*" for prefix in prefixes)]


def _revisions(connection: connect.Connection) -> tuple[Revision, Revision]:
    row = connection.execute(query("current_revision")).fetchone() or {"oldest": 0, "newest": 0}
    return Revision(row["oldest"]), Revision(row["newest"])


def _tenants(connection: connect.Connection, ids: list[str] | None) -> Iterator[tuple[TenantId, TenantStatus]]:
    if ids == []:
        return
    for row in connection.execute(query("tenants"), {"ids": ids}):
        yield TenantId(sys.intern(row["tenant_id"])), TenantStatus(row["status"])


def _endpoints(
    connection: connect.Connection, ids: list[str] | None, ring: keyring.KeyRing, address_guard: guard.Guard
) -> Iterator[tuple[EndpointId, Endpoint]]:
    if ids == []:
        return
    secrets: collections.defaultdict[str, list[dict[str, Any]]] = collections.defaultdict(list)
    for row in connection.execute(query("secrets"), {"ids": ids}):
        secrets[row["endpoint_id"]].append(row)
    for row in connection.execute(query("endpoints"), {"ids": ids}):
        try:
            endpoint = _endpoint(row, [Opened.from_row(secret, ring) for secret in secrets[row["endpoint_id"]]])
            checks.check_endpoint(endpoint, address_guard)
        except (errors.SealError, errors.RegistrationError) as exc:
            endpoint = _quarantined(row, str(exc))
        except Exception:
            # A surprise in one row must not keep the registry from everybody: the job would hold, or never start.
            log.exception("endpoint %s cannot be used in an unforeseen way", row["endpoint_id"])
            endpoint = _quarantined(row, "cannot be used; the log says why")
        yield endpoint.endpoint_id, endpoint


def _unsendable(row: dict[str, Any]) -> Endpoint:
    """Return an endpoint without all that only sending needs."""
    return Endpoint(
        endpoint_id=EndpointId(row["endpoint_id"]),
        customer_id=CustomerId(row["customer_id"]),
        url=row["url"],
        status=EndpointStatus(row["status"]),
        mode=DeliveryMode(row["mode"]),
        batching=_batching(row) if row["mode"] == DeliveryMode.BATCH else None,
        retrying=_retrying_of(row),
        order_by=row["order_by"],
    )


def _quarantined(row: dict[str, Any], fault: str) -> Endpoint:
    return Endpoint(
        endpoint_id=EndpointId(row["endpoint_id"]),
        customer_id=CustomerId(row["customer_id"]),
        url=row["url"],
        mode=DeliveryMode(row["mode"]),  # its own, so that one lane tells of what is skipped
        fault=fault,
    )


def _endpoint(row: dict[str, Any], secrets: list[Opened]) -> Endpoint:
    signing_keys = tuple(secret.signing_key() for secret in secrets if secret.purpose in endpoint_secrets.SCHEME_OF)
    if not signing_keys:
        raise errors.SealError("has no signing secret that has not expired")
    by_purpose = {secret.purpose: secret.secret for secret in secrets}
    return Endpoint(
        endpoint_id=EndpointId(sys.intern(row["endpoint_id"])),
        customer_id=CustomerId(sys.intern(row["customer_id"])),
        url=row["url"],
        status=EndpointStatus(row["status"]),
        mode=DeliveryMode(row["mode"]),
        signing_keys=signing_keys,
        auth=Auth(
            kind=AuthKind(row["auth_kind"]),
            username=row["auth_username"],
            header=row["auth_header"],
            secret=by_purpose.get(endpoint_secrets.AUTH),
            client_id=row["auth_client_id"],
            token_url=row["auth_token_url"],
            token_scope=row["auth_token_scope"],
        ),
        content_mode=ContentMode(row["content_mode"]),
        headers=tuple(json.loads(row["headers"]).items()),
        tls=_tls(row["tls_authorities"], row["tls_certificate"], by_purpose.get(endpoint_secrets.TLS_KEY)),
        max_in_flight=row["max_in_flight"],
        max_per_second=row["max_per_second"],
        batching=_batching(row) if row["mode"] == DeliveryMode.BATCH else None,
        retrying=_retrying_of(row),
        order_by=row["order_by"] and sys.intern(row["order_by"]),
    )


def _batching(row: dict[str, Any]) -> Batching:
    return Batching(
        max_events=row["batch_max_events"],
        max_wait_s=row["batch_max_wait_s"],
        max_bytes=row["batch_max_bytes"],
        is_gzipped=row["batch_gzip"],
    )


def _retrying_of(row: dict[str, Any]) -> Retrying:
    schedule_s = row["retry_schedule_s"]
    return _retrying(None if schedule_s is None else tuple(schedule_s), row["retry_max_age_s"], row["retry_timeout_s"])


# Nearly all endpoints have the same; what is shared is pickled and kept once.
@functools.lru_cache(maxsize=1024)
def _retrying(schedule_s: tuple[float, ...] | None, max_age_s: float | None, timeout_s: float | None) -> Retrying:
    said: dict[str, Any] = {"schedule_s": schedule_s, "max_age_s": max_age_s, "timeout_s": timeout_s}
    return Retrying(**{name: value for name, value in said.items() if value is not None})


def _tls(authorities: str | None, certificate: str | None, key: Secret | None) -> Tls | None:
    if authorities is None and certificate is None and key is None:
        return None
    # Thousands of endpoints share the certificates of few authorities; shared texts are pickled and kept once.
    return Tls(
        authorities=authorities and sys.intern(authorities), certificate=certificate and sys.intern(certificate), key=key
    )


def _subscriptions(
    connection: connect.Connection, ids: list[str] | None, tenant_id: TenantId | None = None
) -> Iterator[tuple[SubscriptionId, Subscription]]:
    if ids == []:
        return
    scopes: collections.defaultdict[str, list[dict[str, Any]]] = collections.defaultdict(list)
    for row in connection.execute(query("snapshot_scopes"), {"ids": ids, "tenant_id": tenant_id}):
        scopes[row["subscription_id"]].append(row)
    # Thousands of subscriptions share few scopes, filters, event types and endpoints; what is shared is pickled and kept once.
    shared: dict[Scope, Scope] = {}
    read_pattern = functools.cache(_pattern)
    for row in connection.execute(query("subscriptions"), {"ids": ids}):
        scope = _scope(row["scope"], scopes.pop(row["subscription_id"], []))
        pattern, fault = read_pattern(row["pattern"])
        subscription = Subscription(
            subscription_id=SubscriptionId(row["subscription_id"]),
            endpoint_id=EndpointId(sys.intern(row["endpoint_id"])),
            event_type=sys.intern(row["event_type"]),
            scope=shared.setdefault(scope, scope),
            filter_pattern=pattern,
            status=SubscriptionStatus(row["status"]),
            fault=fault,
        )
        yield subscription.subscription_id, subscription


def _scope(kind: str, rows: list[dict[str, Any]]) -> Scope:
    found: dict[str, Any] = {}
    for row in rows:
        tenants = [TenantId(sys.intern(tenant_id)) for tenant_id in row["tenants"] or ()]
        pairs = [
            (TenantId(sys.intern(tenant_id)), SubTenantId(sys.intern(sub_tenant_id)))
            for tenant_id, sub_tenant_id in row["sub_tenants"] or ()
        ]
        if row["effect"] == "include":
            found |= {"tenants": tuple(sorted(tenants)), "sub_tenants": tuple(sorted(pairs))}
        else:
            found |= {"without_tenants": frozenset(tenants), "without_sub_tenants": frozenset(pairs)}
    # Only what there is: the empty sets are then those of Scope's defaults, which all scopes share.
    return Scope(everything=kind == "everything", **{name: ids for name, ids in found.items() if ids})


def _pattern(text: str | None) -> tuple[dict[str, Any] | None, str | None]:
    """Return the filter and what is wrong with it. A wrong one is left out: nested deeply, it would not even pickle."""
    if text is None:
        return None, None
    try:
        pattern: dict[str, Any] = json.loads(text)
        filters.compile_pattern(pattern)
    except (ValueError, RecursionError):  # a number of thousands of digits; lists in lists in lists
        return None, "filter: cannot be read as JSON"
    except errors.FilterError as exc:
        return None, f"filter: {exc}"
    return pattern, None


def _with_deleted(ids: Iterable[Id], rows: Iterable[tuple[Id, Row]]) -> dict[Id, Row | None]:
    """Return each changed id with its row, or None where it is gone."""
    return dict.fromkeys(ids) | dict(rows)
