"""Define the types of the YAML document of `fanout apply`, and check a document before any row of it is written.

Runs in `fanout` commands and in the API.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field, SecretStr

from delivery import errors, registry_model
from delivery.secret import Secret
from delivery.webhooks.filters import event_pattern
from delivery.webhooks.http import guard
from delivery.webhooks.http import tls as tls_context
from delivery.webhooks.sending import signing
from subscriptions_db.manifest import event_types, mistakes, parts, yaml_document
from subscriptions_db.secrets import endpoint_secrets
from subscriptions_db.snapshot import endpoint_checks

EventType = Annotated[str, Field(pattern=mistakes.EVENT_TYPE_PATTERN, max_length=255)]
Name = Annotated[str, Field(max_length=200)]
Description = Annotated[str, Field(max_length=2000)]
MAX_METADATA_ENTRIES = 50
"""Maximum entries of a row's metadata."""
MAX_METADATA_BYTES = 8192
"""Maximum size of a row's metadata as JSON. The table column has the same bound."""


def _as_id(value: object) -> object:
    """Return a whole number as text, because people write ids as in `tenants: [2, 7]`. Return other values unchanged."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _as_sub_tenant(value: object) -> object:
    """Return a bare id as a sub-tenant without a name. Return other values unchanged."""
    return {"id": value} if isinstance(value, str | int) else value


def _small(metadata: dict[str, str]) -> dict[str, str]:
    """Return the metadata unchanged; raise ValueError if Postgres would refuse its size."""
    size = len(json.dumps(metadata, ensure_ascii=False).encode(errors="surrogatepass"))
    if size > MAX_METADATA_BYTES:
        raise ValueError(f"has {size} bytes as JSON; at most {MAX_METADATA_BYTES} are allowed: shorten names or texts")
    return metadata


Id = Annotated[str, Field(pattern=mistakes.ID_PATTERN), pydantic.BeforeValidator(_as_id)]
Metadata = Annotated[
    dict[Annotated[str, Field(pattern=mistakes.METADATA_NAME_PATTERN)], Annotated[str, Field(max_length=500)]],
    Field(max_length=MAX_METADATA_ENTRIES),
    pydantic.AfterValidator(_small),
]


class ManifestSubTenant(parts.ManifestPart):
    """A department of a tenant."""

    id: Id
    """The id, unique within the tenant."""
    name: Name = ""
    """The name, for people."""


class ManifestTenantFields(parts.ManifestPart):
    """The fields of a tenant in a document. The API's own type of a tenant adds the quotas."""

    name: Name = ""
    """The name, for people."""
    status: Literal["active", "suspended"] = "active"
    """`suspended`: events of the tenant are not delivered."""
    sub_tenants: list[Annotated[ManifestSubTenant, pydantic.BeforeValidator(_as_sub_tenant)]] | None = None
    """The departments of the tenant, as ids or objects. All other stored sub-tenants are deleted. Omitted or null: no
    change."""


class ManifestTenant(ManifestTenantFields):
    """An organisation whose events flow through Kafka. Omitted `sub_tenants` stay unchanged."""

    id: Id


class ManifestCustomer(parts.ManifestPart):
    """The owner of endpoints."""

    id: Id
    name: Name = ""


class EndpointFields(parts.ManifestPart):
    """The fields of an endpoint that a manifest has, and that API requests can set and change."""

    url: str
    """The URL that takes deliveries."""
    content_mode: Literal["standard", "cloudevents_binary", "cloudevents_structured"] = "standard"
    """The form of requests: Standard Webhooks, or CloudEvents in binary or structured mode."""
    payload: Literal["json", "original"] = "json"
    """The form of payloads with a schema of the schema registry (Avro, Protobuf, JSON Schema). `json`: converted to JSON.
    `original`: as their producers wrote them."""
    headers: dict[str, str] = Field(default={})
    """Additional headers of each request, by name."""
    auth: parts.AuthFields = parts.AuthFields()
    """The authentication of requests, beside the signature."""
    tls: parts.TlsFields = parts.TlsFields()
    """TLS settings of connections, where they differ from the system's."""
    max_in_flight: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Maximum concurrent requests to the endpoint, divided among the workers. Each worker may have at least one. First attempts
    and retries are counted apart. Null: the operator's bound for each worker holds."""
    max_per_second: Annotated[float, Field(gt=0, le=100_000)] | None = None
    """Maximum requests a second to the endpoint. Null: no limit."""
    batch: parts.BatchFields = parts.BatchFields()
    """The limits at which a batch is sent, and its compression. Only with mode `batch`."""
    retry: parts.RetryFields = parts.RetryFields()
    """The schedule and the limits of retries."""
    order_by: Annotated[str, Field(pattern=mistakes.FIELD_PATH_PATTERN, max_length=255)] | None = None
    """The path of a payload field. Events with equal values in this field are delivered in order. Null: no order. Only with
    mode `direct`."""
    validation: Literal["none", "cloudevents"] = "none"
    """With `cloudevents`, deliveries wait until the receiver has permitted them."""
    description: Description = ""
    """Free text. Receivers do not get it."""
    metadata: Metadata = Field(default={})
    """Names and texts of the customer's own, such as the id of the endpoint in another system. Receivers do not get them."""


class ManifestEndpoint(EndpointFields):
    """A URL at which a customer receives deliveries.

    Without `signing_secrets`, the platform generates a signing secret for a new endpoint, and shows it once.
    """

    id: Id
    customer: Id
    mode: Literal["direct", "batch"] = "direct"
    status: Literal["active", "paused", "disabled"] | None = None
    """Omitted: active, except that an endpoint disabled with a reason stays disabled."""
    signing_secrets: list[SecretStr] | None = Field(None, min_length=1, max_length=endpoint_secrets.MAX_SIGNING_KEYS)
    """The newest first; several during a rotation. Omitted: the stored secrets stay. If no secret is stored, one is
    generated."""

    @pydantic.model_validator(mode="after")
    def _can_be_batched(self) -> ManifestEndpoint:
        if self.mode == "direct" and self.batch != parts.BatchFields():
            raise ValueError("batch is allowed only with `mode: batch`: remove batch, or set mode to batch")
        if self.mode == "batch" and self.content_mode == "cloudevents_binary":
            raise ValueError(
                "content_mode cloudevents_binary is allowed only with `mode: direct`, because such a request has one event: "
                "use standard or cloudevents_structured, or set mode to direct"
            )
        if self.mode == "batch" and self.order_by is not None:
            raise ValueError("order_by is allowed only with `mode: direct`: remove order_by, or set mode to direct")
        return self


class SubscriptionFields(parts.ManifestPart):
    """The fields of a subscription that a manifest has, and that API requests can set and change."""

    event_type: EventType
    """An exact type, a prefix wildcard such as `order.*`, or `*` for all types."""
    everything: bool = False
    """Match the events of all tenants, present and future."""
    tenants: list[Id] = Field(default=[])
    """Match the events of these tenants."""
    sub_tenants: dict[Id, Annotated[list[Id], Field(min_length=1)]] = Field(default={})
    """Match the events of these sub-tenants, by tenant."""
    except_tenants: list[Id] = Field(default=[])
    """Match no event of these tenants."""
    except_sub_tenants: dict[Id, list[Id]] = Field(default={})
    """Match no event of these sub-tenants, by tenant."""
    filter: dict[str, Any] | None = None
    """An event pattern that an event must match too. Null: no filter."""
    description: Description = ""
    """Free text."""
    metadata: Metadata = Field(default={})
    """Names and texts of the customer's own."""


class ManifestSubscription(SubscriptionFields):
    """A rule that sends matching events to an endpoint."""

    id: Id
    endpoint: Id
    status: Literal["active", "paused"] = "active"

    @pydantic.model_validator(mode="after")
    def _says_whose_events(self) -> ManifestSubscription:
        if self.everything and (self.tenants or self.sub_tenants):
            raise ValueError("has everything: true beside tenants or sub_tenants: remove one of the two")
        if not (self.everything or self.tenants or self.sub_tenants):
            raise ValueError("does not say whose events: add tenants or sub_tenants, or everything: true")
        return self

    def scopes(self) -> frozenset[tuple[str, str, str | None]]:
        """Return the subscription's scope as rows (effect, tenant id, sub-tenant id).

        The effect is `include` or `exclude`. Sub-tenant None: the whole tenant.
        """
        rows: set[tuple[str, str, str | None]] = set()
        for effect, tenants, sub_tenants in (
            ("include", self.tenants, self.sub_tenants),
            ("exclude", self.except_tenants, self.except_sub_tenants),
        ):
            rows |= {(effect, tenant, None) for tenant in tenants}
            rows |= {(effect, tenant, department) for tenant, departments in sub_tenants.items() for department in departments}
        return frozenset(rows)


class EventTypeFields(parts.ManifestPart):
    """The fields of an event type in the catalogue."""

    description: Description = ""
    """The meaning of the type, for people."""
    json_schema: dict[str, Any] | None = None
    """JSON Schema 2020-12 of the payload."""
    examples: Annotated[list[Any], Field(max_length=20)] = Field(default=[])
    """Example payloads; each must match the schema."""
    deprecated: bool = False
    """True: new subscriptions should not use the type."""


class ManifestEventType(EventTypeFields):
    """An event type in the catalogue. The catalogue describes events and does not affect delivery."""

    id: Id


class Manifest(parts.ManifestPart):
    """Everything that one document registers."""

    tenants: list[ManifestTenant] = Field(default=[])
    customers: list[ManifestCustomer] = Field(default=[])
    endpoints: list[ManifestEndpoint] = Field(default=[])
    subscriptions: list[ManifestSubscription] = Field(default=[])
    event_types: list[ManifestEventType] = Field(default=[])


ROWS: Mapping[str, type[parts.ManifestPart]] = {
    "tenants": ManifestTenant,
    "customers": ManifestCustomer,
    "endpoints": ManifestEndpoint,
    "subscriptions": ManifestSubscription,
    "event_types": ManifestEventType,
}
"""Field of the manifest → the type of its rows."""
_Rows = Mapping[str, Sequence[tuple[int, Any]]]
"""Rows that are valid by their type, each with its index in the document."""


def load(text: str | bytes, address_guard: guard.Guard, name: str = "") -> Manifest:
    """Parse and check a document. `name` is its file, for messages.

    Raise RegistrationError, with the line if it is known, if the document is not YAML, too large or nested too deeply. Raise
    ManifestRefused with file and line of each mistake that `check` finds.
    """
    document = yaml_document.read(text, name)
    with document.naming_lines(name):
        return check(document.value, address_guard)


def check(document: Any, address_guard: guard.Guard) -> Manifest:
    """Return the manifest of a parsed document; raise ManifestRefused with the mistakes of all rows.

    Rows are first checked against their type. Rows that fit the type are then checked further, also if other rows do not fit:
    for repeated and reserved ids, and for URL, headers, secrets, TLS, filter, schema and examples.
    """
    manifest, found = None, []
    try:
        manifest = Manifest.model_validate(document)
    except pydantic.ValidationError as exc:
        found = list(mistakes.found(exc, Manifest))
    rows = (
        _rows_of_their_type(document) if manifest is None else {kind: list(enumerate(getattr(manifest, kind))) for kind in ROWS}
    )
    found += _unfit(rows, address_guard)
    if manifest is None or found:
        raise errors.ManifestRefused(found)
    return manifest


def _rows_of_their_type(document: Any) -> _Rows:
    """Return the rows of an invalid document that fit the type of their list. The caller checks these rows further."""
    rows: dict[str, list[tuple[int, Any]]] = {kind: [] for kind in ROWS}
    for kind, model_type in ROWS.items():
        entries = document.get(kind) if isinstance(document, dict) else None
        for number, entry in enumerate(entries if isinstance(entries, list) else ()):
            with contextlib.suppress(pydantic.ValidationError):
                rows[kind].append((number, model_type.model_validate(entry)))
    return rows


def _unfit(rows: _Rows, address_guard: guard.Guard) -> Iterator[errors.RegistrationError]:
    """Yield the mistakes in rows that are valid by their type."""
    for kind in ROWS:
        yield from _twice(kind, rows[kind])
    for number, tenant in rows["tenants"]:
        if tenant.id == registry_model.PLATFORM:
            yield errors.RegistrationError(
                f"tenants[{number}].id", f"{registry_model.PLATFORM} is reserved for the platform: choose another id"
            )
    for number, endpoint in rows["endpoints"]:
        for problem in _unfit_endpoint(endpoint, address_guard):
            yield problem.within(f"endpoints[{number}]")
    for number, subscription in rows["subscriptions"]:
        if subscription.filter is not None:
            yield from endpoint_checks.errors_of(
                f"subscriptions[{number}].filter", event_pattern.compile_pattern, subscription.filter
            )
    for number, event_type in rows["event_types"]:
        yield from endpoint_checks.errors_of(
            f"event_types[{number}]", event_types.check, event_type.json_schema, event_type.examples
        )


def _unfit_endpoint(row: ManifestEndpoint, address_guard: guard.Guard) -> Iterator[errors.RegistrationError]:
    keys = list(endpoint_checks.errors_of("", signing_keys, row))
    yield from keys
    endpoint = _as_model(row.model_copy(update={"signing_secrets": None}) if keys else row)
    found = list(endpoint_checks.problems(endpoint, address_guard))
    yield from found
    if endpoint.tls is not None and not any(problem.path.startswith("tls") for problem in found):
        # Not among the checks of each read: OpenSSL takes 0.9 ms, and the job reads all endpoints when it starts.
        yield from endpoint_checks.errors_of("", tls_context.require_usable, endpoint.tls)


def signing_keys(endpoint: ManifestEndpoint) -> list[registry_model.SigningKey] | None:
    """Return the signing keys of an endpoint in the document, the newest first; None if the document keeps the stored keys.

    Raise RegistrationError, with the path, for a text that is no signing secret.
    """
    if endpoint.signing_secrets is None:
        return None
    keys = []
    for number, text in enumerate(endpoint.signing_secrets):
        with endpoint_checks.below(f"signing_secrets[{number}]"):
            keys.append(signing.from_text(text.get_secret_value()))
    return keys


def secret(text: SecretStr | None) -> Secret | None:
    """Return a secret of the document as the platform's type, which no repr shows; None stays None."""
    return None if text is None else Secret(text.get_secret_value().encode())


def _as_model(row: ManifestEndpoint) -> registry_model.Endpoint:
    """Return the endpoint as the job's type, with the fields that `endpoint_checks` reads. All other fields have defaults.

    Raise RegistrationError for a text that is no signing secret.
    """
    auth, tls = row.auth, row.tls
    return registry_model.Endpoint(
        endpoint_id=registry_model.EndpointId(row.id),
        customer_id=registry_model.CustomerId(row.customer),
        url=row.url,
        signing_keys=tuple(signing_keys(row) or ()),
        auth=registry_model.Auth(
            kind=registry_model.AuthKind(auth.kind),
            username=auth.username,
            header=auth.header,
            secret=secret(auth.secret),
            client_id=auth.client_id,
            token_url=auth.token_url,
            token_scope=auth.token_scope,
        ),
        headers=tuple(row.headers.items()),
        tls=registry_model.Tls(authorities=tls.authorities, certificate=tls.certificate, key=secret(tls.key)),
    )


def _twice(kind: str, rows: Iterable[tuple[int, Any]]) -> Iterator[errors.RegistrationError]:
    seen: dict[str, int] = {}
    for number, row in rows:
        if row.id in seen:
            yield errors.RegistrationError(
                f"{kind}[{number}].id", f"{row.id} is already used at {kind}[{seen[row.id]}]: choose another id"
            )
        seen.setdefault(row.id, number)
