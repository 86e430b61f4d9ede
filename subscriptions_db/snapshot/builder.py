"""Build the job's endpoints and subscriptions from rows of the registry. An unusable row is quarantined.

Runs on the driver, in executors that look up the registry, in the API, in `fanout archive` and in `fanout` commands. Also runs
in programs that read `GET /v1/snapshot`. Pure, except for the log.
"""

from __future__ import annotations

import collections
import functools
import json
import logging
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from delivery import errors
from delivery.payload_form import EndpointPayload
from delivery.registry_model import (
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
from delivery.webhooks.filters import event_pattern
from delivery.webhooks.http import guard
from delivery.webhooks.sending import handshake
from subscriptions_db.secrets import endpoint_secrets, keyring
from subscriptions_db.secrets.endpoint_secrets import EndpointSecret
from subscriptions_db.snapshot import endpoint_checks

log = logging.getLogger(__name__)

Rows = Iterable[dict[str, Any]]


def tenants(rows: Rows) -> Iterator[tuple[TenantId, TenantStatus]]:
    """Yield each tenant with its status. Raise ValueError for an unknown status."""
    for row in rows:
        yield TenantId(sys.intern(row["tenant_id"])), TenantStatus(row["status"])


def endpoints(
    rows: Rows, secret_rows: Rows, ring: keyring.KeyRing, address_guard: guard.Guard
) -> Iterator[tuple[EndpointId, Endpoint]]:
    """Yield each endpoint with its secrets opened.

    For an unusable row, yield the endpoint with a `fault`, and with the fields for routing only. Such an endpoint is
    quarantined: no lane sends to it. Raise ValueError if the row has an unknown status, delivery mode or payload form.
    """
    secrets: collections.defaultdict[str, list[dict[str, Any]]] = collections.defaultdict(list)
    for row in secret_rows:
        secrets[row["endpoint_id"]].append(row)
    for row in rows:
        try:
            endpoint = _endpoint(row, [EndpointSecret.from_row(secret, ring) for secret in secrets[row["endpoint_id"]]])
            endpoint_checks.check_endpoint(endpoint, address_guard)
        except (errors.SealError, errors.RegistrationError) as exc:
            endpoint = _quarantined(row, str(exc))
        except Exception:
            # An unexpected error in one row must not make the whole registry unreadable, which would stop the job.
            log.exception(
                "endpoint %s is quarantined after an unforeseen error: its deliveries wait. Register the endpoint again with "
                "`fanout apply`, and send this traceback to the maintainers of the platform",
                row["endpoint_id"],
            )
            endpoint = _quarantined(row, "an unforeseen error; the log of this process has the traceback")
        yield endpoint.endpoint_id, endpoint


def subscriptions(rows: Rows, scope_rows: Rows) -> Iterator[tuple[SubscriptionId, Subscription]]:
    """Yield each subscription with its scope and filter. An unusable filter becomes None, with a `fault` beside it.

    Raise ValueError for an unknown status.
    """
    scopes: collections.defaultdict[str, list[dict[str, Any]]] = collections.defaultdict(list)
    for row in scope_rows:
        scopes[row["subscription_id"]].append(row)
    # Thousands of subscriptions share few scopes, filters, event types and endpoints. A shared object is pickled once.
    shared: dict[Scope, Scope] = {}
    read_pattern = functools.cache(_pattern)
    for row in rows:
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


def routing_endpoint(row: dict[str, Any]) -> Endpoint:
    """Return an endpoint with the fields for routing only, without secrets and other fields for sending."""
    return Endpoint(
        endpoint_id=EndpointId(row["endpoint_id"]),
        customer_id=CustomerId(row["customer_id"]),
        url=row["url"],
        status=_status(row),
        mode=DeliveryMode(row["mode"]),
        payload=EndpointPayload(row["payload"]),
        batching=_batching(row) if row["mode"] == DeliveryMode.BATCH else None,
        retrying=_retrying_of(row),
        order_by=row["order_by"],
    )


def _quarantined(row: dict[str, Any], fault: str) -> Endpoint:
    """Return an endpoint to which the lanes send nothing until an operator repairs the `fault`, such as a missing key."""
    return replace(routing_endpoint(row), fault=fault)


def _endpoint(row: dict[str, Any], secrets: list[EndpointSecret]) -> Endpoint:
    signing_keys = tuple(secret.signing_key() for secret in secrets if secret.purpose in endpoint_secrets.SCHEME_OF)
    if not signing_keys:
        raise errors.SealError("has no valid signing secret: run `fanout endpoints rotate-secret`")
    by_purpose = {secret.purpose: secret.secret for secret in secrets}
    return Endpoint(
        endpoint_id=EndpointId(sys.intern(row["endpoint_id"])),
        customer_id=CustomerId(sys.intern(row["customer_id"])),
        url=row["url"],
        status=_status(row),
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
        payload=EndpointPayload(row["payload"]),
        headers=tuple(json.loads(row["headers"]).items()),
        tls=_tls(row["tls_authorities"], row["tls_certificate"], by_purpose.get(endpoint_secrets.TLS_KEY)),
        max_in_flight=row["max_in_flight"],
        max_per_second=handshake.limit_per_s(row["max_per_second"], row["permitted_per_minute"]),
        batching=_batching(row) if row["mode"] == DeliveryMode.BATCH else None,
        retrying=_retrying_of(row),
        order_by=row["order_by"] and sys.intern(row["order_by"]),
        origin=row["permitted_origin"] and sys.intern(row["permitted_origin"]),
    )


def _status(row: dict[str, Any]) -> EndpointStatus:
    """Return an endpoint's status. An active endpoint that waits for its receiver's permission counts as paused."""
    status = EndpointStatus(row["status"])
    return EndpointStatus.PAUSED if status is EndpointStatus.ACTIVE and row["awaits_permission"] else status


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


# Nearly all endpoints have equal settings. A shared object is pickled and stored once.
@functools.lru_cache(maxsize=1024)
def _retrying(schedule_s: tuple[float, ...] | None, max_age_s: float | None, timeout_s: float | None) -> Retrying:
    fields: dict[str, Any] = {"schedule_s": schedule_s, "max_age_s": max_age_s, "timeout_s": timeout_s}
    return Retrying(**{name: value for name, value in fields.items() if value is not None})


def _tls(authorities: str | None, certificate: str | None, key: Secret | None) -> Tls | None:
    if authorities is None and certificate is None and key is None:
        return None
    # Thousands of endpoints share the certificates of few authorities. A shared text is pickled and stored once.
    return Tls(
        authorities=authorities and sys.intern(authorities), certificate=certificate and sys.intern(certificate), key=key
    )


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
    # Empty sets are left out, so that all scopes share the empty defaults of Scope.
    return Scope(everything=kind == "everything", **{name: ids for name, ids in found.items() if ids})


def _pattern(text: str | None) -> tuple[dict[str, Any] | None, str | None]:
    """Return the filter pattern and None, or None and the fault of the pattern. Without a filter, return None twice.

    Nesting that is too deep is a fault too, because such a pattern could not be pickled.
    """
    if text is None:
        return None, None
    try:
        pattern: dict[str, Any] = json.loads(text)
        event_pattern.compile_pattern(pattern)
    except (ValueError, RecursionError):  # a number of thousands of digits; deeply nested lists
        return None, "filter: cannot be read as JSON"
    except errors.FilterError as exc:
        return None, f"filter: {exc}"
    return pattern, None
