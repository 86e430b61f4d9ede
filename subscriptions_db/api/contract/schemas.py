"""The types of endpoints and subscriptions in requests and answers, derived from the manifest. No answer has stored secrets.

Runs in the API. Pure.
"""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any, Optional

import pydantic
from psycopg.types.json import Jsonb
from pydantic import Field

from delivery.model import SignatureScheme
from subscriptions_db.api.contract import routes
from subscriptions_db.manifest import manifest, mistakes
from subscriptions_db.registration import rotation


def changes_of(kind: type[manifest.ManifestPart], name: str, description: str) -> type[manifest.ManifestPart]:
    """Return the type of a PATCH body: every field is optional, and an omitted field stays unchanged."""
    fields: dict[str, Any] = {
        # `Optional`, because the type is known at run time only.
        field: (Optional[info.rebuild_annotation()], None)  # noqa: UP045
        for field, info in kind.model_fields.items()
    }
    return pydantic.create_model(name, __base__=manifest.ManifestPart, __doc__=description, **fields)


class NewEndpoint(manifest.EndpointFields):
    """An endpoint to create."""

    id: manifest.Id | None = None
    """The id. Only an operator's key may choose an id; otherwise the platform does."""
    customer: manifest.Id | None = None
    """Required with an operator's key: the owner."""
    mode: str = Field("direct", pattern="^(direct|batch)$")


EndpointChanges = changes_of(
    manifest.EndpointFields,
    "EndpointChanges",
    "Changes of an endpoint. Omitted fields stay unchanged. `auth` and `tls` are replaced in full, with their secrets.",
)


SearchText = Annotated[str, Field(min_length=1, max_length=200)]
MetadataEntry = Annotated[str, Field(max_length=565, pattern=mistakes.METADATA_ENTRY_PATTERN)]


def criteria(asked: dict[str, Any]) -> dict[str, Any]:
    """Return search criteria as parameters of the statements."""
    if asked["metadata"] is None:
        return asked
    name, _, text = asked["metadata"].partition(":")
    return asked | {"metadata": Jsonb({name: text})}


class SearchQuery(routes.ListQuery):
    """Search criteria for endpoints and for subscriptions."""

    customer: str | None = None
    """Only rows of this customer."""
    q: SearchText | None = None
    """Only rows with this text, in upper or lower case."""
    metadata: MetadataEntry | None = None
    """Only rows with this entry in their metadata, as `name:text`."""

    def criteria(self) -> dict[str, Any]:
        """Return the criteria as parameters of the statements."""
        return criteria(self.model_dump(exclude={*routes.ListQuery.model_fields, "expand"}))


class Auth(pydantic.BaseModel):
    """The authentication of requests to an endpoint, beside the signature. The answer leaves the secret out."""

    kind: str
    username: str | None
    header: str | None
    client_id: str | None
    token_url: str | None
    token_scope: str | None


class Tls(pydantic.BaseModel):
    """TLS settings of connections to an endpoint, where they differ from the system's, without the private key."""

    authorities: str | None
    certificate: str | None


class Endpoint(pydantic.BaseModel):
    """A URL at which a customer receives deliveries."""

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
    batch: manifest.BatchFields
    retry: manifest.RetryFields
    order_by: str | None
    validation: str
    awaits_permission: bool
    """True: the receiver has not permitted deliveries yet, so deliveries wait as for a paused endpoint."""
    permitted_origin: str | None
    """The origin that the receiver permitted."""
    permitted_per_minute: int | None
    """Requests a minute that the receiver permits. Null: any number."""
    permitted_at: dt.datetime | None
    disabled_reason: str | None
    disabled_at: dt.datetime | None
    description: str
    metadata: dict[str, str]
    created_at: dt.datetime
    updated_at: dt.datetime | None
    """The last change of a field, the status or a secret. Null: the last change is older than this field."""


class CreatedEndpoint(Endpoint):
    """A created endpoint with its signing secret."""

    signing_secret: str | None
    """Shown once. Null in the repeated answer for an `Idempotency-Key`."""


class Endpoints(routes.ListPage):
    """A page of endpoints."""

    items: list[Endpoint]


class RotateSecret(manifest.ManifestPart):
    """A rotation of the signing secret."""

    scheme: SignatureScheme = SignatureScheme.HMAC
    overlap_s: int = Field(86_400, ge=0, le=int(rotation.MAX_OVERLAP.total_seconds()))
    """Seconds during which the earlier secrets sign too."""


class RotatedSecret(pydantic.BaseModel):
    """A new signing secret."""

    endpoint: str
    scheme: SignatureScheme
    secret: str | None
    """With scheme `v1`; shown once. Null in the repeated answer for an `Idempotency-Key`."""
    public_key: str | None
    """With scheme `v1a`: the key by which the customer verifies signatures."""
    others_end_at: list[dt.datetime]
    """When each earlier secret stops signing, the earliest first."""


class DisableEndpoint(manifest.ManifestPart):
    """A request to disable an endpoint."""

    reason: str = Field(min_length=1, max_length=500)


class NewSubscription(manifest.SubscriptionFields):
    """A subscription to create."""

    endpoint: manifest.Id
    id: manifest.Id | None = None
    """The id. Only an operator's key may choose an id; otherwise the platform does."""


SubscriptionChanges = changes_of(
    manifest.SubscriptionFields, "SubscriptionChanges", "Changes of a subscription. Omitted fields stay unchanged."
)


class Subscription(pydantic.BaseModel):
    """A rule that sends matching events to an endpoint."""

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
    description: str
    metadata: dict[str, str]
    created_at: dt.datetime | None
    updated_at: dt.datetime | None
    """The last change of a field. Null, here and in `created_at`: the change is older than these fields."""


class LintWarning(pydantic.BaseModel):
    """A field that is allowed but probably a mistake."""

    path: str
    """The field of the subscription."""
    problem: str


class RegisteredSubscription(Subscription):
    """A created or changed subscription."""

    warnings: list[LintWarning]
    """Why the subscription may match no event. With `?strict=true` it is refused instead."""


_READ_ONLY = ("disabled_reason", "disabled_at", "awaits_permission", "permitted_origin", "permitted_per_minute", "permitted_at",
              "created_at", "updated_at")  # fmt: skip
"""The fields of an endpoint that an answer shows and a manifest cannot set."""


def endpoint_document(row: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest document of a registered endpoint, without secrets."""
    own = ("customer", "url", "mode", "status", "content_mode", "headers", "max_in_flight", "max_per_second", "order_by",
           "validation", "description", "metadata")  # fmt: skip
    parts: dict[str, type[pydantic.BaseModel]] = {
        "auth": Auth,
        "tls": Tls,
        "batch": manifest.BatchFields,
        "retry": manifest.RetryFields,
    }
    document = {name: row[name] for name in own}
    return document | {part: {name: row[f"{part}_{name}"] for name in kind.model_fields} for part, kind in parts.items()}


def endpoint(row_id: str, row: dict[str, Any]) -> Endpoint:
    """Convert the registered row of an endpoint to the API's type."""
    document = endpoint_document(row)
    return Endpoint(id=row_id, **{name: row[name] for name in _READ_ONLY}, **document)


def subscription_document(row: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest document of a registered subscription."""
    scopes: dict[str, Any] = {"tenants": [], "sub_tenants": {}, "except_tenants": [], "except_sub_tenants": {}}
    for effect, tenant_id, sub_tenant_id in sorted(row["scopes"], key=str):
        prefix = "except_" if effect == "exclude" else ""
        if sub_tenant_id is None:
            scopes[f"{prefix}tenants"].append(tenant_id)
        else:
            scopes[f"{prefix}sub_tenants"].setdefault(tenant_id, []).append(sub_tenant_id)
    own = {name: row[name] for name in ("endpoint", "event_type", "filter", "status", "description", "metadata")}
    return own | scopes | {"everything": row["scope"] == "everything"}


def subscription(row_id: str, row: dict[str, Any]) -> Subscription:
    """Convert the registered row of a subscription to the API's type."""
    times = {name: row[name] for name in ("created_at", "updated_at")}
    return Subscription(id=row_id, **times, **subscription_document(row))
