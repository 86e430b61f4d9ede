"""The YAML document of `fanout apply`: tenants, customers, endpoints, subscriptions, event types. Checked whole before a write.

Runs in the command and in the API.
"""

from __future__ import annotations

import contextlib
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


def _as_id(value: object) -> object:
    """Take a whole number as an id: `tenants: [2, 7]` is how people write them."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _as_sub_tenant(value: object) -> object:
    """Take an id alone as a sub-tenant without a name."""
    return {"id": value} if isinstance(value, str | int) else value


Id = Annotated[str, Field(pattern=mistakes.ID_PATTERN), pydantic.BeforeValidator(_as_id)]


class Part(pydantic.BaseModel):
    """A part of a document: closed to names that it does not know, and quoting nothing that it refuses."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class SubTenant(Part):
    """A department of a tenant."""

    id: Id
    name: Name = ""


class TenantFields(Part):
    """What can be said of a tenant."""

    name: Name = ""
    status: Literal["active", "suspended"] = "active"
    sub_tenants: list[Annotated[SubTenant, pydantic.BeforeValidator(_as_sub_tenant)]] | None = None


class Tenant(TenantFields):
    """An organisation whose events flow through Kafka. `sub_tenants` left out: they stay as they are."""

    id: Id


class Customer(Part):
    """The owner of endpoints."""

    id: Id
    name: Name = ""


class Auth(Part):
    """What an endpoint wants to see beside the signature. For `oauth2` the secret is the client's."""

    kind: Literal["none", "basic", "bearer", "api_key", "oauth2"] = "none"
    username: Annotated[str, Field(min_length=1, max_length=200, pattern=mistakes.USERNAME_PATTERN)] | None = None
    header: Annotated[str, Field(pattern=mistakes.HEADER_PATTERN)] | None = None
    secret: SecretStr | None = None
    client_id: Annotated[str, Field(pattern=mistakes.CLIENT_ID_PATTERN)] | None = None
    token_url: str | None = None
    token_scope: Annotated[str, Field(pattern=mistakes.SCOPE_WORDS_PATTERN, max_length=1000)] | None = None

    @pydantic.model_validator(mode="after")
    def _fits_its_kind(self) -> Auth:
        needs = _NEEDS[self.kind]
        given = {name for name in type(self).model_fields if name != "kind" and getattr(self, name) is not None}
        if missing := sorted(needs - given):
            raise ValueError(f"{self.kind} needs {' and '.join(missing)}")
        if beyond := sorted(given - needs - ({"token_scope"} if self.kind == "oauth2" else set())):
            raise ValueError(f"{self.kind} takes no {' and no '.join(beyond)}")
        return self


_NEEDS: dict[str, set[str]] = {
    "none": set(),
    "basic": {"username", "secret"},
    "bearer": {"secret"},
    "api_key": {"header", "secret"},
    "oauth2": {"client_id", "token_url", "secret"},
}


class Tls(Part):
    """What differs from the system's defaults in connections to an endpoint. PEM texts."""

    authorities: Annotated[str, Field(max_length=64 * 1024)] | None = None
    certificate: Annotated[str, Field(max_length=48 * 1024)] | None = None
    key: Annotated[SecretStr, Field(max_length=16 * 1024)] | None = None


class Batch(Part):
    """When a batch leaves: by whichever bound is reached first. For endpoints in batch mode."""

    max_events: Annotated[int, Field(ge=1, le=10_000)] = 1000
    max_wait_s: Annotated[float, Field(gt=0, le=86_400)] = 1
    max_bytes: Annotated[int, Field(ge=4096, le=10 * 1024 * 1024)] = 1024 * 1024
    gzip: bool = False


class Retry(Part):
    """How long, and how often, the retry lane goes on. What is left out is as model.Retrying has it."""

    schedule_s: Annotated[list[Annotated[float, Field(gt=0, le=604_800)]], Field(max_length=50)] | None = None
    """The waits before each further attempt; empty: what fails in its lane is given up there."""
    max_age_s: Annotated[float, Field(gt=0, le=2_592_000)] | None = None
    timeout_s: Annotated[float, Field(gt=0, le=60)] | None = None


class EndpointFields(Part):
    """What can be said, and changed later, of where a customer takes deliveries."""

    url: str
    content_mode: Literal["standard", "cloudevents_binary", "cloudevents_structured"] = "standard"
    headers: dict[str, str] = {}
    auth: Auth = Auth()
    tls: Tls = Tls()
    max_in_flight: Annotated[int, Field(ge=1, le=10_000)] | None = None
    max_per_second: Annotated[float, Field(gt=0, le=100_000)] | None = None
    batch: Batch = Batch()
    retry: Retry = Retry()
    order_by: Annotated[str, Field(pattern=mistakes.FIELD_PATH_PATTERN, max_length=255)] | None = None
    validation: Literal["none", "cloudevents"] = "none"
    """Whether its receiver is asked first, and nothing is sent before it has permitted it."""


class Endpoint(EndpointFields):
    """Where a customer takes deliveries. Without `signing_secrets` one is made when the endpoint is, and shown once."""

    id: Id
    customer: Id
    mode: Literal["direct", "batch"] = "direct"
    status: Literal["active", "paused", "disabled"] | None = None
    """Left out: active; but what the platform or an operator has disabled for a reason stays disabled."""
    signing_secrets: list[SecretStr] | None = Field(None, min_length=1, max_length=endpoint_secrets.MAX_SIGNING_KEYS)
    """Newest first; several while a rotation lasts."""

    @pydantic.model_validator(mode="after")
    def _can_be_batched(self) -> Endpoint:
        if self.mode == "direct" and self.batch != Batch():
            raise ValueError("batch is for mode: batch")
        if self.mode == "batch" and self.content_mode == "cloudevents_binary":
            raise ValueError("cloudevents_binary is for single events; mode: batch takes standard or cloudevents_structured")
        if self.mode == "batch" and self.order_by is not None:
            raise ValueError("order_by is for mode: direct")
        return self


class SubscriptionFields(Part):
    """What can be said, and changed later, of which events go to an endpoint."""

    event_type: EventType
    everything: bool = False
    tenants: list[Id] = []
    sub_tenants: dict[Id, Annotated[list[Id], Field(min_length=1)]] = {}
    except_tenants: list[Id] = []
    except_sub_tenants: dict[Id, list[Id]] = {}
    filter: dict[str, Any] | None = None


class Subscription(SubscriptionFields):
    """Which events go to an endpoint."""

    id: Id
    endpoint: Id
    status: Literal["active", "paused"] = "active"

    @pydantic.model_validator(mode="after")
    def _says_whose_events(self) -> Subscription:
        if self.everything == bool(self.tenants or self.sub_tenants):
            raise ValueError("says either everything: true, or which tenants or sub_tenants")
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


class EventTypeFields(Part):
    """What can be said of an event type in the catalogue."""

    description: Annotated[str, Field(max_length=2000)] = ""
    json_schema: dict[str, Any] | None = None
    """JSON Schema 2020-12 of the payload."""
    examples: Annotated[list[Any], Field(max_length=20)] = []
    """Payloads; each keeps to the schema."""
    deprecated: bool = False


class EventTypeEntry(EventTypeFields):
    """An event type in the catalogue, which says how events look and decides nothing."""

    id: Id


class Manifest(Part):
    """Everything that one document registers."""

    tenants: list[Tenant] = []
    customers: list[Customer] = []
    endpoints: list[Endpoint] = []
    subscriptions: list[Subscription] = []
    event_types: list[EventTypeEntry] = []


ROWS: Mapping[str, type[Part]] = {
    "tenants": Tenant,
    "customers": Customer,
    "endpoints": Endpoint,
    "subscriptions": Subscription,
    "event_types": EventTypeEntry,
}
_Rows = Mapping[str, Sequence[tuple[int, Any]]]
"""Rows that are of their type, each with its number in the document."""


def load(text: str | bytes, address_guard: guard.Guard, name: str = "") -> Manifest:
    """Read and check a document, by the name of its file; raise ManifestRefused with the line of each thing that is wrong."""
    document = yaml_document.read(text, name)
    with document.naming_lines(name):
        return check(document.value, address_guard)


def check(document: Any, address_guard: guard.Guard) -> Manifest:
    """Return the checked manifest of a parsed document; raise ManifestRefused with all that is wrong in it."""
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
    """Return the rows that can be checked further, of a document in which others are wrong."""
    rows: dict[str, list[tuple[int, Any]]] = {kind: [] for kind in ROWS}
    for kind, model_type in ROWS.items():
        entries = document.get(kind) if isinstance(document, dict) else None
        for number, entry in enumerate(entries if isinstance(entries, list) else ()):
            with contextlib.suppress(pydantic.ValidationError):
                rows[kind].append((number, model_type.model_validate(entry)))
    return rows


def _unfit(rows: _Rows, address_guard: guard.Guard) -> Iterator[errors.RegistrationError]:
    """Yield what is wrong in rows that are of their type."""
    for kind in ROWS:
        yield from _twice(kind, rows[kind])
    for number, tenant in rows["tenants"]:
        if tenant.id == model.PLATFORM:
            yield errors.RegistrationError(
                f"tenants[{number}].id", f"{model.PLATFORM} is the platform's own name: take another"
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


def _unfit_endpoint(row: Endpoint, address_guard: guard.Guard) -> Iterator[errors.RegistrationError]:
    keys = list(endpoint_checks.found("", signing_keys, row))
    yield from keys
    yield from endpoint_checks.problems(
        _as_model(row.model_copy(update={"signing_secrets": None}) if keys else row), address_guard
    )


def signing_keys(endpoint: Endpoint) -> list[model.SigningKey] | None:
    """Return the keys that the document gives for an endpoint, newest first, or None when it leaves them as they are."""
    if endpoint.signing_secrets is None:
        return None
    keys = []
    for number, text in enumerate(endpoint.signing_secrets):
        with endpoint_checks.below(f"signing_secrets[{number}]"):
            keys.append(signing.from_text(text.get_secret_value()))
    return keys


def secret(text: SecretStr | None) -> Secret | None:
    """Return what the document gives as a secret."""
    return None if text is None else Secret(text.get_secret_value().encode())


def _as_model(row: Endpoint) -> model.Endpoint:
    """Return the endpoint as the job will see it."""
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
            yield errors.RegistrationError(f"{kind}[{number}].id", f"{row.id} stands at {kind}[{seen[row.id]}] already")
        seen.setdefault(row.id, number)
