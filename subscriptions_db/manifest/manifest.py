"""The types of the YAML document of `fanout apply`, and its check. The whole document is checked before anything is written.

Runs in the command and in the API.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field, SecretStr

from delivery import errors, model
from delivery.secret import Secret
from delivery.webhooks.filters import event_pattern
from delivery.webhooks.http import guard
from delivery.webhooks.sending import signing
from subscriptions_db.manifest import event_types, mistakes, yaml_document
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
    """Accept a whole number as an id, because people write `tenants: [2, 7]`."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _as_sub_tenant(value: object) -> object:
    """Accept a bare id as a sub-tenant without a name."""
    return {"id": value} if isinstance(value, str | int) else value


def _small(metadata: dict[str, str]) -> dict[str, str]:
    """Return the metadata unchanged; raise ValueError if Postgres would refuse its size."""
    if len(json.dumps(metadata, ensure_ascii=False).encode(errors="surrogatepass")) > MAX_METADATA_BYTES:
        raise ValueError(f"must be at most {MAX_METADATA_BYTES} bytes as JSON")
    return metadata


Id = Annotated[str, Field(pattern=mistakes.ID_PATTERN), pydantic.BeforeValidator(_as_id)]
Metadata = Annotated[
    dict[Annotated[str, Field(pattern=mistakes.METADATA_NAME_PATTERN)], Annotated[str, Field(max_length=500)]],
    Field(max_length=MAX_METADATA_ENTRIES),
    pydantic.AfterValidator(_small),
]


class ManifestPart(pydantic.BaseModel):
    """Base of the types of a manifest: refuses unknown fields, and quotes no input in errors."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class ManifestSubTenant(ManifestPart):
    """A department of a tenant."""

    id: Id
    name: Name = ""


class TenantFields(ManifestPart):
    """The fields of a tenant."""

    name: Name = ""
    status: Literal["active", "suspended"] = "active"
    sub_tenants: list[Annotated[ManifestSubTenant, pydantic.BeforeValidator(_as_sub_tenant)]] | None = None


class ManifestTenant(TenantFields):
    """An organisation whose events flow through Kafka. Omitted `sub_tenants` stay unchanged."""

    id: Id


class ManifestCustomer(ManifestPart):
    """The owner of endpoints."""

    id: Id
    name: Name = ""


class AuthFields(ManifestPart):
    """The authentication of requests to an endpoint, beside the signature. With `oauth2`, `secret` is the client secret."""

    kind: Literal["none", "basic", "bearer", "api_key", "oauth2"] = "none"
    username: Annotated[str, Field(min_length=1, max_length=200, pattern=mistakes.USERNAME_PATTERN)] | None = None
    header: Annotated[str, Field(pattern=mistakes.HEADER_PATTERN)] | None = None
    secret: SecretStr | None = None
    client_id: Annotated[str, Field(pattern=mistakes.CLIENT_ID_PATTERN)] | None = None
    token_url: str | None = None
    token_scope: Annotated[str, Field(pattern=mistakes.SCOPE_WORDS_PATTERN, max_length=1000)] | None = None

    @pydantic.model_validator(mode="after")
    def _fits_its_kind(self) -> AuthFields:
        needs = _NEEDS[self.kind]
        given = {name for name in type(self).model_fields if name != "kind" and getattr(self, name) is not None}
        if missing := sorted(needs - given):
            raise ValueError(f"kind {self.kind} requires {' and '.join(missing)}")
        if beyond := sorted(given - needs - ({"token_scope"} if self.kind == "oauth2" else set())):
            raise ValueError(f"kind {self.kind} does not allow {' or '.join(beyond)}")
        return self


_NEEDS: dict[str, set[str]] = {
    "none": set(),
    "basic": {"username", "secret"},
    "bearer": {"secret"},
    "api_key": {"header", "secret"},
    "oauth2": {"client_id", "token_url", "secret"},
}


class TlsFields(ManifestPart):
    """TLS settings of connections to an endpoint, where they differ from the system's. PEM texts."""

    authorities: Annotated[str, Field(max_length=64 * 1024)] | None = None
    certificate: Annotated[str, Field(max_length=48 * 1024)] | None = None
    key: Annotated[SecretStr, Field(max_length=16 * 1024)] | None = None


class BatchFields(ManifestPart):
    """The limits at which a batch is sent, whichever is reached first. For endpoints with mode `batch`."""

    max_events: Annotated[int, Field(ge=1, le=10_000)] = 1000
    max_wait_s: Annotated[float, Field(gt=0, le=86_400)] = 1
    max_bytes: Annotated[int, Field(ge=4096, le=10 * 1024 * 1024)] = 1024 * 1024
    gzip: bool = False


class RetryFields(ManifestPart):
    """The schedule of the retry lane for an endpoint. Omitted fields have the defaults of model.Retrying."""

    schedule_s: Annotated[list[Annotated[float, Field(gt=0, le=604_800)]], Field(max_length=50)] | None = None
    """Seconds before each retry. Empty: a delivery that fails in its first lane is dead-lettered there."""
    max_age_s: Annotated[float, Field(gt=0, le=2_592_000)] | None = None
    timeout_s: Annotated[float, Field(gt=0, le=60)] | None = None


class EndpointFields(ManifestPart):
    """The fields of an endpoint that can change later."""

    url: str
    content_mode: Literal["standard", "cloudevents_binary", "cloudevents_structured"] = "standard"
    headers: dict[str, str] = {}
    auth: AuthFields = AuthFields()
    tls: TlsFields = TlsFields()
    max_in_flight: Annotated[int, Field(ge=1, le=10_000)] | None = None
    max_per_second: Annotated[float, Field(gt=0, le=100_000)] | None = None
    batch: BatchFields = BatchFields()
    retry: RetryFields = RetryFields()
    order_by: Annotated[str, Field(pattern=mistakes.FIELD_PATH_PATTERN, max_length=255)] | None = None
    validation: Literal["none", "cloudevents"] = "none"
    """With `cloudevents`, deliveries wait until the receiver has permitted them."""
    description: Description = ""
    """Free text. Receivers do not get it."""
    metadata: Metadata = {}
    """Names and texts of the customer's own, such as the id of the endpoint in another system. Receivers do not get them."""


class ManifestEndpoint(EndpointFields):
    """A URL at which a customer receives deliveries. Without `signing_secrets`, a new endpoint gets one, shown once."""

    id: Id
    customer: Id
    mode: Literal["direct", "batch"] = "direct"
    status: Literal["active", "paused", "disabled"] | None = None
    """Omitted: active, except that an endpoint disabled with a reason stays disabled."""
    signing_secrets: list[SecretStr] | None = Field(None, min_length=1, max_length=endpoint_secrets.MAX_SIGNING_KEYS)
    """The newest first; several during a rotation."""

    @pydantic.model_validator(mode="after")
    def _can_be_batched(self) -> ManifestEndpoint:
        if self.mode == "direct" and self.batch != BatchFields():
            raise ValueError("batch is allowed with mode: batch only")
        if self.mode == "batch" and self.content_mode == "cloudevents_binary":
            raise ValueError(
                "content_mode cloudevents_binary holds one event: with mode: batch use standard or cloudevents_structured"
            )
        if self.mode == "batch" and self.order_by is not None:
            raise ValueError("order_by is allowed with mode: direct only")
        return self


class SubscriptionFields(ManifestPart):
    """The fields that the API takes both to create and to change a subscription."""

    event_type: EventType
    everything: bool = False
    tenants: list[Id] = []
    sub_tenants: dict[Id, Annotated[list[Id], Field(min_length=1)]] = {}
    except_tenants: list[Id] = []
    except_sub_tenants: dict[Id, list[Id]] = {}
    filter: dict[str, Any] | None = None
    description: Description = ""
    """Free text."""
    metadata: Metadata = {}
    """Names and texts of the customer's own."""


class ManifestSubscription(SubscriptionFields):
    """A rule that sends matching events to an endpoint."""

    id: Id
    endpoint: Id
    status: Literal["active", "paused"] = "active"

    @pydantic.model_validator(mode="after")
    def _says_whose_events(self) -> ManifestSubscription:
        if self.everything == bool(self.tenants or self.sub_tenants):
            raise ValueError("must have either everything: true, or tenants or sub_tenants, and not both")
        return self

    def scopes(self) -> frozenset[tuple[str, str, str | None]]:
        """Return (effect, tenant id, sub-tenant id) of each scope row."""
        rows: set[tuple[str, str, str | None]] = set()
        for effect, tenants, sub_tenants in (
            ("include", self.tenants, self.sub_tenants),
            ("exclude", self.except_tenants, self.except_sub_tenants),
        ):
            rows |= {(effect, tenant, None) for tenant in tenants}
            rows |= {(effect, tenant, department) for tenant, departments in sub_tenants.items() for department in departments}
        return frozenset(rows)


class EventTypeFields(ManifestPart):
    """The fields of an event type in the catalogue."""

    description: Description = ""
    json_schema: dict[str, Any] | None = None
    """JSON Schema 2020-12 of the payload."""
    examples: Annotated[list[Any], Field(max_length=20)] = []
    """Example payloads; each must match the schema."""
    deprecated: bool = False


class ManifestEventType(EventTypeFields):
    """An event type in the catalogue. The catalogue describes events and does not affect delivery."""

    id: Id


class Manifest(ManifestPart):
    """Everything that one document registers."""

    tenants: list[ManifestTenant] = []
    customers: list[ManifestCustomer] = []
    endpoints: list[ManifestEndpoint] = []
    subscriptions: list[ManifestSubscription] = []
    event_types: list[ManifestEventType] = []


ROWS: Mapping[str, type[ManifestPart]] = {
    "tenants": ManifestTenant,
    "customers": ManifestCustomer,
    "endpoints": ManifestEndpoint,
    "subscriptions": ManifestSubscription,
    "event_types": ManifestEventType,
}
_Rows = Mapping[str, Sequence[tuple[int, Any]]]
"""Rows that are valid by their type, each with its index in the document."""


def load(text: str | bytes, address_guard: guard.Guard, name: str = "") -> Manifest:
    """Parse and check a document.

    Raise RegistrationError with the line at which the document is not YAML, or ManifestRefused with file and line of every
    mistake.
    """
    document = yaml_document.read(text, name)
    with document.naming_lines(name):
        return check(document.value, address_guard)


def check(document: Any, address_guard: guard.Guard) -> Manifest:
    """Return the manifest of a parsed document; raise ManifestRefused with every mistake."""
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
    """Return the valid rows of a document that has invalid rows too, so that they are checked further."""
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
        if tenant.id == model.PLATFORM:
            yield errors.RegistrationError(
                f"tenants[{number}].id", f"{model.PLATFORM} is reserved for the platform: choose another id"
            )
    for number, endpoint in rows["endpoints"]:
        for problem in _unfit_endpoint(endpoint, address_guard):
            yield problem.within(f"endpoints[{number}]")
    for number, subscription in rows["subscriptions"]:
        if subscription.filter is not None:
            yield from endpoint_checks.found(
                f"subscriptions[{number}].filter", event_pattern.compile_pattern, subscription.filter
            )
    for number, event_type in rows["event_types"]:
        yield from endpoint_checks.found(
            f"event_types[{number}]", event_types.check, event_type.json_schema, event_type.examples
        )


def _unfit_endpoint(row: ManifestEndpoint, address_guard: guard.Guard) -> Iterator[errors.RegistrationError]:
    keys = list(endpoint_checks.found("", signing_keys, row))
    yield from keys
    yield from endpoint_checks.problems(
        _as_model(row.model_copy(update={"signing_secrets": None}) if keys else row), address_guard
    )


def signing_keys(endpoint: ManifestEndpoint) -> list[model.SigningKey] | None:
    """Return the signing keys of an endpoint in the document, the newest first; None if the document keeps the present ones."""
    if endpoint.signing_secrets is None:
        return None
    keys = []
    for number, text in enumerate(endpoint.signing_secrets):
        with endpoint_checks.below(f"signing_secrets[{number}]"):
            keys.append(signing.from_text(text.get_secret_value()))
    return keys


def secret(text: SecretStr | None) -> Secret | None:
    """Return a secret of the document; None if there is none."""
    return None if text is None else Secret(text.get_secret_value().encode())


def _as_model(row: ManifestEndpoint) -> model.Endpoint:
    """Return the endpoint as the job's type."""
    auth, tls = row.auth, row.tls
    return model.Endpoint(
        endpoint_id=model.EndpointId(row.id),
        customer_id=model.CustomerId(row.customer),
        url=row.url,
        signing_keys=tuple(signing_keys(row) or ()),
        auth=model.Auth(
            kind=model.AuthKind(auth.kind),
            username=auth.username,
            header=auth.header,
            secret=secret(auth.secret),
            client_id=auth.client_id,
            token_url=auth.token_url,
            token_scope=auth.token_scope,
        ),
        headers=tuple(row.headers.items()),
        tls=model.Tls(authorities=tls.authorities, certificate=tls.certificate, key=secret(tls.key)),
    )


def _twice(kind: str, rows: Iterable[tuple[int, Any]]) -> Iterator[errors.RegistrationError]:
    seen: dict[str, int] = {}
    for number, row in rows:
        if row.id in seen:
            yield errors.RegistrationError(
                f"{kind}[{number}].id", f"{row.id} is already used at {kind}[{seen[row.id]}]: choose another id"
            )
        seen.setdefault(row.id, number)
