"""How endpoints and subscriptions look in requests and answers, made from the types of the manifest. Secrets never look out.

Runs in the API. Pure.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, Optional

import pydantic
from pydantic import Field

from delivery.model import SignatureScheme
from subscriptions_db.manifest import manifest
from subscriptions_db.registration import rotation


def changes_of(kind: type[manifest.Part], name: str, description: str) -> type[manifest.Part]:
    """Return the type of a change (PATCH): each field may be left out, and stays as it is then."""
    fields: dict[str, Any] = {
        # `Optional` of a type that is known at run time only.
        field: (Optional[info.rebuild_annotation()], None)  # noqa: UP045
        for field, info in kind.model_fields.items()
    }
    return pydantic.create_model(name, __base__=manifest.Part, __doc__=description, **fields)


class NewEndpoint(manifest.EndpointFields):
    """An endpoint to be made."""

    id: manifest.Id | None = None
    """The operator's to choose; else one is made."""
    customer: manifest.Id | None = None
    """For the operator: whose it is."""
    mode: str = Field("direct", pattern="^(direct|batch)$")


EndpointChanges = changes_of(
    manifest.EndpointFields,
    "EndpointChanges",
    "What is to change of an endpoint. What is left out stays; `auth` and `tls` are given whole, with their secrets.",
)


class Auth(pydantic.BaseModel):
    """What an endpoint wants to see beside the signature, without its secret."""

    kind: str
    username: str | None
    header: str | None
    client_id: str | None
    token_url: str | None
    token_scope: str | None


class Tls(pydantic.BaseModel):
    """What differs from the system's defaults in connections to an endpoint, without the key."""

    authorities: str | None
    certificate: str | None


class Endpoint(pydantic.BaseModel):
    """Where a customer takes deliveries."""

    id: str
    customer: str
    url: str
    mode: str
    status: str
    content_mode: str
    headers: dict[str, str]
    auth: Auth
    tls: Tls
    max_in_flight: int | None
    max_per_second: float | None
    batch: manifest.Batch
    retry: manifest.Retry
    order_by: str | None
    validation: str
    awaits_permission: bool
    """Its receiver has to permit deliveries first: nothing is sent, as to a paused one."""
    permitted_origin: str | None
    """As whom its receiver lets us send."""
    permitted_per_minute: int | None
    """How many requests a minute it permits; null: as many as we like."""
    permitted_at: dt.datetime | None
    disabled_reason: str | None
    disabled_at: dt.datetime | None


class MadeEndpoint(Endpoint):
    """An endpoint that was made, with its signing secret."""

    signing_secret: str | None
    """Shown here, once. Null in an answer that is repeated for its `Idempotency-Key`."""


class Endpoints(pydantic.BaseModel):
    """A page of endpoints."""

    items: list[Endpoint]
    next_cursor: str | None


class Rotate(manifest.Part):
    """How a signing secret is rotated."""

    scheme: SignatureScheme = SignatureScheme.HMAC
    overlap_s: int = Field(86_400, ge=0, le=int(rotation.MAX_OVERLAP.total_seconds()))
    """How long the secrets before it go on to sign."""


class Rotated(pydantic.BaseModel):
    """A new signing secret."""

    endpoint: str
    scheme: SignatureScheme
    secret: str | None
    """`v1`: shown here, once. Null in an answer that is repeated for its `Idempotency-Key`."""
    public_key: str | None
    """`v1a`: what the customer verifies with."""
    others_end_at: list[dt.datetime]


class Disable(manifest.Part):
    """Why an endpoint is disabled."""

    reason: str = Field(min_length=1, max_length=500)


class NewSubscription(manifest.SubscriptionFields):
    """A subscription to be made."""

    endpoint: manifest.Id
    id: manifest.Id | None = None
    """The operator's to choose; else one is made."""


SubscriptionChanges = changes_of(
    manifest.SubscriptionFields, "SubscriptionChanges", "What is to change of a subscription. What is left out stays."
)


class Subscription(pydantic.BaseModel):
    """Which events go to an endpoint."""

    id: str
    endpoint: str
    event_type: str
    everything: bool
    tenants: list[str]
    sub_tenants: dict[str, list[str]]
    except_tenants: list[str]
    except_sub_tenants: dict[str, list[str]]
    filter: Any
    status: str


class Doubt(pydantic.BaseModel):
    """What is allowed, and probably not what was meant."""

    path: str
    """The field of the subscription."""
    problem: str


class Registered(Subscription):
    """A subscription that was made or changed."""

    warnings: list[Doubt]
    """Why it may take no event. `?strict=true` refuses it instead."""


class Subscriptions(pydantic.BaseModel):
    """A page of subscriptions."""

    items: list[Subscription]
    next_cursor: str | None


_TOLD = ("disabled_reason", "disabled_at", "awaits_permission", "permitted_origin", "permitted_per_minute", "permitted_at")
"""What an endpoint shows and no document says."""


def endpoint_document(row: dict[str, Any]) -> dict[str, Any]:
    """Return what the manifest says of an endpoint, from its row in the registry; without secrets."""
    own = ("customer", "url", "mode", "status", "content_mode", "headers", "max_in_flight", "max_per_second", "order_by",
           "validation")  # fmt: skip
    parts: dict[str, type[pydantic.BaseModel]] = {"auth": Auth, "tls": Tls, "batch": manifest.Batch, "retry": manifest.Retry}
    document = {name: row[name] for name in own}
    return document | {part: {name: row[f"{part}_{name}"] for name in kind.model_fields} for part, kind in parts.items()}


def endpoint(row_id: str, row: dict[str, Any]) -> Endpoint:
    """Return an endpoint as it is shown."""
    document = endpoint_document(row)
    return Endpoint(id=row_id, **{name: row[name] for name in _TOLD}, **document)


def subscription_document(row: dict[str, Any]) -> dict[str, Any]:
    """Return what the manifest says of a subscription, from its row in the registry."""
    scopes: dict[str, Any] = {"tenants": [], "sub_tenants": {}, "except_tenants": [], "except_sub_tenants": {}}
    for effect, tenant_id, sub_tenant_id in sorted(row["scopes"], key=str):
        prefix = "except_" if effect == "exclude" else ""
        if sub_tenant_id is None:
            scopes[f"{prefix}tenants"].append(tenant_id)
        else:
            scopes[f"{prefix}sub_tenants"].setdefault(tenant_id, []).append(sub_tenant_id)
    own = {name: row[name] for name in ("endpoint", "event_type", "filter", "status")}
    return own | scopes | {"everything": row["scope"] == "everything"}


def subscription(row_id: str, row: dict[str, Any]) -> Subscription:
    """Return a subscription as it is shown."""
    return Subscription(id=row_id, **subscription_document(row))
