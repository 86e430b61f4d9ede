"""Define the types of endpoints and subscriptions in requests and answers. Request bodies derive from the manifest's types.

No answer has stored secrets. An answer has a signing secret only if its request created the secret.

Runs in the API, and in `fanout` commands for the OpenAPI document. Pure.
"""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any, Literal, Optional

import orjson
import pydantic
from psycopg.types.json import Jsonb
from pydantic import Field
from pydantic.fields import FieldInfo

from delivery.registry_model import SignatureScheme
from subscriptions_db import described
from subscriptions_db.api.contract import routes
from subscriptions_db.api.contract.deprecation import Deprecation
from subscriptions_db.manifest import manifest, mistakes, parts
from subscriptions_db.registration import rotation


def _encodable(payload: Any) -> Any:
    """Return the payload unchanged. Raise ValueError if orjson cannot encode it: orjson decodes more levels than it encodes."""
    try:
        orjson.dumps(payload)
    except TypeError:
        raise ValueError("is nested too deeply: use at most 250 levels") from None
    return payload


Payload = Annotated[Any, pydantic.AfterValidator(_encodable)]
"""The payload of an event in a request body, as JSON."""


def changes_of(kind: type[parts.ManifestPart], name: str, description: str) -> type[parts.ManifestPart]:
    """Return the type of a PATCH body with the fields of `kind`.

    Every field is optional, and an omitted field stays unchanged. A deprecated field of `kind` is deprecated here too.
    """
    fields: dict[str, Any] = {
        field: (_optional(info), Field(None, description=info.description)) for field, info in kind.model_fields.items()
    }
    return pydantic.create_model(name, __base__=parts.ManifestPart, __doc__=description, **fields)


def _optional(info: FieldInfo) -> Any:
    """Return the annotation of a field with None as a further value.

    A Deprecation in the annotation moves outside of `Optional`. Inside of `Optional`, it would mark only one alternative of the
    field as deprecated in the JSON Schema, and not the field.
    """
    deprecations = [each for each in info.metadata if isinstance(each, Deprecation)]
    annotation: Any = info.annotation
    for each in info.metadata:
        if each not in deprecations:
            annotation = Annotated[annotation, each]
    # `Optional`, because the type is known at run time only.
    annotation = Optional[annotation]  # noqa: UP045
    for each in deprecations:
        annotation = Annotated[annotation, each]
    return annotation


class EndpointToCreate(manifest.EndpointFields):
    """An endpoint to create for the customer of the request."""

    id: manifest.Id | None = None
    """The id, which only an operator's key may choose. Null: the platform chooses it."""
    mode: Literal["direct", "batch"] = "direct"
    """`direct`: a request for each event. `batch`: a request for several events."""


class NewEndpoint(EndpointToCreate):
    """An endpoint to create."""

    customer: manifest.Id | None = None
    """The owner. Required with an operator's key; other keys belong to one customer."""


EndpointChanges = changes_of(
    manifest.EndpointFields,
    "EndpointChanges",
    "Changes of an endpoint. Omitted fields stay unchanged. `auth` and `tls` are replaced in full, with their secrets.",
)


SearchText = Annotated[str, Field(min_length=1, max_length=200, pattern=mistakes.NO_NULL_PATTERN)]
MetadataEntry = Annotated[str, Field(max_length=565, pattern=mistakes.METADATA_ENTRY_PATTERN)]


def criteria(asked: dict[str, Any]) -> dict[str, Any]:
    """Return search criteria as parameters of SQL statements: `metadata` becomes JSON, from `name:text`; None stays None."""
    if asked["metadata"] is None:
        return asked
    name, _, text = asked["metadata"].partition(":")
    return asked | {"metadata": Jsonb({name: text})}


class TextQuery(routes.ListQuery):
    """The page of a list to return, and a text to search. The summary of the operation names the searched fields."""

    q: SearchText | None = None
    """Only rows with this text, in upper or lower case."""


class SearchQuery(routes.ListQuery):
    """Search criteria for endpoints and for subscriptions."""

    customer: str | None = None
    """Only rows of this customer. A customer's key may name its own customer only."""
    q: SearchText | None = None
    """Only rows with this text in the id, the description, or the URL (endpoints) or event type (subscriptions), in upper or
    lower case."""
    metadata: MetadataEntry | None = None
    """Only rows with this entry in their metadata, as `name:text`."""

    def criteria(self) -> dict[str, Any]:
        """Return the criteria as parameters of SQL statements."""
        return criteria(self.model_dump(exclude={*routes.ListQuery.model_fields, "expand"}))


class Auth(described.DescribedModel):
    """The authentication of requests to an endpoint, beside the signature. The answer leaves the secret out."""

    kind: str
    """`none`, `basic`, `bearer`, `api_key` or `oauth2`."""
    username: str | None
    """The user name, with kind `basic`."""
    header: str | None
    """The name of the header that has the secret, with kind `api_key`."""
    client_id: str | None
    """The id of the OAuth 2.0 client, with kind `oauth2`."""
    token_url: str | None
    """The URL of the token endpoint, with kind `oauth2`."""
    token_scope: str | None
    """The scopes of the requested tokens, separated by blanks, with kind `oauth2`."""


class Tls(described.DescribedModel):
    """TLS settings of the connections to an endpoint. The answer leaves the private key out."""

    authorities: str | None
    """Certificates of the authorities that the platform trusts for this endpoint, as PEM. Null: the authorities of the
    system."""
    certificate: str | None
    """The client certificate of the platform, with its chain, as PEM. Null: no client certificate."""


class Endpoint(described.DescribedModel):
    """A URL at which a customer receives deliveries."""

    id: str
    """The id."""
    customer: str
    """The id of the customer that owns the endpoint."""
    url: str
    """The URL that takes deliveries."""
    mode: str
    """`direct`: a request for each event. `batch`: a request for several events."""
    status: str
    """`active`, `paused` or `disabled`. Deliveries to a paused or disabled endpoint wait."""
    content_mode: str
    """The form of requests: `standard`, `cloudevents_binary` or `cloudevents_structured`."""
    payload: str
    """The form in which the endpoint receives a value of a schema registry. `json`: JSON. `original`: the producer's bytes."""
    headers: dict[str, str]
    """Additional headers of each request, by name."""
    auth: Auth
    """The authentication of requests, without its secret."""
    tls: Tls
    """TLS settings of connections, without the private key."""
    max_in_flight: int | None
    """Maximum concurrent requests to the endpoint, divided among the workers. Each worker may have at least one. First attempts
    and retries are counted apart. Null: the operator's bound for each worker holds."""
    max_per_second: float | None
    """Maximum requests a second to the endpoint. Null: no limit."""
    batch: parts.BatchFields
    """The limits at which a batch is sent, and its compression. They apply with mode `batch`."""
    retry: parts.RetryFields
    """The schedule and the limits of retries."""
    order_by: str | None
    """Events with equal values of this field are delivered in order. Null: no order."""
    validation: str
    """`cloudevents`: deliveries wait until the receiver has permitted them. `none`: no permission is needed."""
    awaits_permission: bool
    """True: the receiver has not permitted deliveries yet, so deliveries wait as for a paused endpoint."""
    permitted_origin: str | None
    """The origin that the receiver permitted. Null: none yet."""
    permitted_per_minute: int | None
    """Requests a minute that the receiver permits. Null: any number, or no permission yet."""
    permitted_at: dt.datetime | None
    """When the receiver permitted deliveries. Null: it has not."""
    disabled_reason: str | None
    """The reason why the endpoint is disabled. Null: it is not disabled, or no reason was given."""
    disabled_at: dt.datetime | None
    """When the endpoint was disabled. Null: it is not disabled."""
    description: str
    """Free text. Receivers do not get it."""
    metadata: dict[str, str]
    """Names and texts of the customer's own. Receivers do not get them."""
    created_at: dt.datetime
    """When the endpoint was created."""
    updated_at: dt.datetime | None
    """When a field, the status, a secret or the permission was last changed. Null: the last change was before the platform
    stored this time."""


class CreatedEndpoint(Endpoint):
    """A created endpoint with its signing secret."""

    signing_secret: str | None
    """Shown once. Null in the repeated answer for an `Idempotency-Key`."""


class Endpoints(routes.ListPage):
    """A page of endpoints."""

    items: list[Endpoint]
    """The endpoints of the page."""


class RotateSecret(parts.ManifestPart):
    """A rotation of the signing secret."""

    scheme: SignatureScheme = SignatureScheme.HMAC
    """`v1`: HMAC, with a shared secret. `v1a`: Ed25519, with a public key for the receiver."""
    overlap_s: int = Field(86_400, ge=0, le=int(rotation.MAX_OVERLAP.total_seconds()))
    """Seconds for which the earlier secrets sign too, unless an earlier overlap ends before."""


class RotatedSecret(described.DescribedModel):
    """A new signing secret."""

    endpoint: str
    """The id of the endpoint."""
    scheme: SignatureScheme
    """The scheme of the new secret."""
    secret: str | None
    """The new secret, shown once. Null with scheme `v1a`, and in the repeated answer for an `Idempotency-Key`."""
    public_key: str | None
    """The key by which the customer verifies signatures. Null with scheme `v1`."""
    others_end_at: list[dt.datetime]
    """When each earlier secret stops signing, the earliest first."""


class DisableEndpoint(parts.ManifestPart):
    """A request to disable an endpoint."""

    reason: str = Field(min_length=1, max_length=500)
    """The reason why the endpoint is disabled, for people."""


class NewSubscription(manifest.SubscriptionFields):
    """A subscription to create."""

    endpoint: manifest.Id
    """The id of the endpoint that gets the matching events."""
    id: manifest.Id | None = None
    """The id, which only an operator's key may choose. Null: the platform chooses it."""


SubscriptionChanges = changes_of(
    manifest.SubscriptionFields, "SubscriptionChanges", "Changes of a subscription. Omitted fields stay unchanged."
)


class Subscription(described.DescribedModel):
    """A rule that sends matching events to an endpoint."""

    id: str
    """The id."""
    endpoint: str
    """The id of the endpoint that gets the matching events."""
    event_type: str
    """An exact type, or a prefix wildcard such as `order.*`."""
    everything: bool
    """True: the events of all present and future tenants match, except operational events (tenant `fanout`)."""
    tenants: list[str]
    """The tenants whose events match."""
    sub_tenants: dict[str, list[str]]
    """The sub-tenants whose events match, by tenant."""
    except_tenants: list[str]
    """The tenants whose events do not match."""
    except_sub_tenants: dict[str, list[str]]
    """The sub-tenants whose events do not match, by tenant."""
    filter: Any
    """The event pattern that an event must match too. Null: no filter."""
    status: str
    """`active` or `paused`. Events that match a paused subscription are not delivered."""
    description: str
    """Free text."""
    metadata: dict[str, str]
    """Names and texts of the customer's own."""
    created_at: dt.datetime | None
    """When the subscription was created. Null: it was created before the platform stored this time."""
    updated_at: dt.datetime | None
    """When a field or the status was last changed. Null: the last change was before the platform stored this time."""


class LintWarning(described.DescribedModel):
    """A field that is allowed but probably a mistake."""

    path: str
    """The field of the subscription."""
    problem: str
    """The probable mistake."""


class RegisteredSubscription(Subscription):
    """A created or changed subscription."""

    warnings: list[LintWarning]
    """The reason why the subscription may match no event. With `?strict=true`, the API refuses a subscription that would get a
    warning."""


_READ_ONLY = ("disabled_reason", "disabled_at", "awaits_permission", "permitted_origin", "permitted_per_minute", "permitted_at",
              "created_at", "updated_at")  # fmt: skip
"""The fields of an endpoint that an answer shows and a manifest cannot set."""


def endpoint_document(row: dict[str, Any]) -> dict[str, Any]:
    """Return a registered endpoint as the API and the manifest write it, without its id, its secrets and _READ_ONLY fields."""
    own = ("customer", "url", "mode", "status", "content_mode", "payload", "headers", "max_in_flight", "max_per_second",
           "order_by", "validation", "description", "metadata")  # fmt: skip
    nested: dict[str, type[pydantic.BaseModel]] = {
        "auth": Auth,
        "tls": Tls,
        "batch": parts.BatchFields,
        "retry": parts.RetryFields,
    }
    document = {name: row[name] for name in own}
    return document | {part: {name: row[f"{part}_{name}"] for name in kind.model_fields} for part, kind in nested.items()}


def endpoint(row_id: str, row: dict[str, Any]) -> Endpoint:
    """Convert the registered row of an endpoint to the API's type."""
    document = endpoint_document(row)
    return Endpoint(id=row_id, **{name: row[name] for name in _READ_ONLY}, **document)


def subscription_document(row: dict[str, Any]) -> dict[str, Any]:
    """Return a registered subscription as the API and the manifest write it, without its id and its times."""
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
