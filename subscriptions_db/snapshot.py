"""Read the registry for the job: all of it, or what changed since a revision. Always whole, never a half.

Runs on the driver. Each read is one transaction at one snapshot of Postgres (REPEATABLE READ, read only). A row that cannot
be used is quarantined: it is returned with its fault, and everybody else is served.
"""

from __future__ import annotations

import collections
import json
import logging
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from psycopg.rows import tuple_row

from delivery import errors
from delivery.model import (
    Auth,
    AuthKind,
    ContentMode,
    CustomerId,
    DeliveryMode,
    Endpoint,
    EndpointId,
    EndpointStatus,
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
ScopeRow = tuple[str, str, str | None]
"""Effect, tenant id, sub-tenant id."""


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


def _quarantined(row: dict[str, Any], fault: str) -> Endpoint:
    return Endpoint(
        endpoint_id=EndpointId(row["endpoint_id"]), customer_id=CustomerId(row["customer_id"]), url=row["url"], fault=fault
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
    )


def _tls(authorities: str | None, certificate: str | None, key: Secret | None) -> Tls | None:
    if authorities is None and certificate is None and key is None:
        return None
    # Thousands of endpoints share the certificates of few authorities; shared texts are pickled and kept once.
    return Tls(
        authorities=authorities and sys.intern(authorities), certificate=certificate and sys.intern(certificate), key=key
    )


def _subscriptions(connection: connect.Connection, ids: list[str] | None) -> Iterator[tuple[SubscriptionId, Subscription]]:
    if ids == []:
        return
    scopes: collections.defaultdict[str, list[ScopeRow]] = collections.defaultdict(list)
    # By far the most rows: as tuples they take half the time that they take as dictionaries.
    for subscription_id, effect, *whose in connection.cursor(row_factory=tuple_row).execute(query("scopes"), {"ids": ids}):
        scopes[subscription_id].append((effect, *whose))
    # Thousands of subscriptions share few scopes, event types and endpoints; shared objects are pickled and kept once.
    shared: dict[Scope, Scope] = {}
    for row in connection.execute(query("subscriptions"), {"ids": ids}):
        scope = _scope(row["scope"], scopes[row["subscription_id"]])
        pattern, fault = _pattern(row["pattern"])
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


def _scope(kind: str, rows: list[ScopeRow]) -> Scope:
    found: collections.defaultdict[str, list[Any]] = collections.defaultdict(list)
    for effect, tenant_text, sub_tenant_text in rows:
        tenant_id = TenantId(sys.intern(tenant_text))
        if sub_tenant_text is None:
            found["tenants" if effect == "include" else "without_tenants"].append(tenant_id)
        else:
            pair = (tenant_id, SubTenantId(sys.intern(sub_tenant_text)))
            found["sub_tenants" if effect == "include" else "without_sub_tenants"].append(pair)
    # Only what there is: the empty sets are then those of Scope's defaults, which all scopes share.
    return Scope(everything=kind == "everything", **{name: frozenset(ids) for name, ids in found.items()})


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
