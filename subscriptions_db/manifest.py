"""The YAML document of `fanout apply`: tenants, customers, endpoints, subscriptions, event types. Checked whole before a write.

Runs in the command and in the API.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

import pydantic
import yaml
from pydantic import Field, SecretStr

from delivery import errors, model
from delivery.secret import Secret
from delivery.webhooks import filters, guard, signing
from subscriptions_db import checks, endpoint_secrets, event_types

_SAFE_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The C loader where it is built: ten times faster."""
MAX_DOCUMENT_BYTES = 64 * 1024 * 1024
EventType = Annotated[str, Field(pattern=r"^(\*|[A-Za-z0-9][A-Za-z0-9_:/-]*(\.[A-Za-z0-9_:/-]+)*(\.\*)?)$", max_length=255)]
Name = Annotated[str, Field(max_length=200)]


def _as_id(value: object) -> object:
    """Take a whole number as an id: `tenants: [2, 7]` is how people write them."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _as_sub_tenant(value: object) -> object:
    """Take an id alone as a sub-tenant without a name."""
    return {"id": value} if isinstance(value, str | int) else value


Id = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}$"), pydantic.BeforeValidator(_as_id)]


class _Loader(_SAFE_LOADER):  # type: ignore[misc]  # its base is one of two
    """Refuses a key that stands twice: YAML's parsers silently drop the first, and pruning would delete what it named."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:  # noqa: FBT001, FBT002  # as in the base
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"{key.value} stands here twice", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


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
    username: Annotated[str, Field(min_length=1, max_length=200, pattern="^[^:]+$")] | None = None
    header: str | None = None
    secret: SecretStr | None = None
    client_id: Annotated[str, Field(pattern=r"^[ -~]{1,256}$")] | None = None
    token_url: str | None = None
    token_scope: Annotated[str, Field(pattern=r"^[!#-\[\]-~]+( [!#-\[\]-~]+)*$", max_length=1000)] | None = None

    @pydantic.model_validator(mode="after")
    def _fits_its_kind(self) -> Auth:
        needs = _NEEDS[self.kind]
        given = {name for name in type(self).model_fields if name != "kind" and getattr(self, name) is not None}
        if given - ({"token_scope"} if self.kind == "oauth2" else set()) != needs:
            raise ValueError(f"{self.kind} takes {' and '.join(sorted(needs)) or 'nothing else'}")
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
    order_by: Annotated[str, Field(pattern=r"^[^.\s]+(\.[^.\s]+)*$", max_length=255)] | None = None
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


def load(text: str | bytes, address_guard: guard.Guard) -> Manifest:
    """Read and check a document; raise RegistrationError with the path of the first thing that is wrong."""
    if len(text) > MAX_DOCUMENT_BYTES:
        raise errors.RegistrationError("", f"the document is larger than {MAX_DOCUMENT_BYTES} bytes; apply it in parts")
    try:
        document = yaml.load(text, Loader=_Loader)  # noqa: S506  # made from a safe one
    except (ValueError, RecursionError) as exc:  # 2024-13-01 looks like a date to YAML and is none
        raise errors.RegistrationError("", f"not YAML: {exc}") from None
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        where = f"line {mark.line + 1}" if mark else ""
        raise errors.RegistrationError(where, f"not YAML: {getattr(exc, 'problem', None) or 'unreadable'}") from None
    return check(document if document is not None else {}, address_guard)


def check(document: Any, address_guard: guard.Guard) -> Manifest:
    """Return the checked manifest of a parsed document."""
    try:
        manifest = Manifest.model_validate(document)
    except pydantic.ValidationError as exc:
        first = exc.errors(include_input=False, include_url=False)[0]
        raise errors.RegistrationError(path_of(first["loc"]), first["msg"].removeprefix("Value error, ")) from None
    for kind in ("tenants", "customers", "endpoints", "subscriptions", "event_types"):
        _require_unique(kind, (row.id for row in getattr(manifest, kind)))
    for number, endpoint in enumerate(manifest.endpoints):
        with checks.below(f"endpoints[{number}]"):
            checks.check_endpoint(_as_model(endpoint), address_guard)
    for number, subscription in enumerate(manifest.subscriptions):
        if subscription.filter is not None:
            with checks.below(f"subscriptions[{number}].filter"):
                filters.compile_pattern(subscription.filter)
    for number, event_type in enumerate(manifest.event_types):
        with checks.below(f"event_types[{number}]"):
            event_types.check(event_type.json_schema, event_type.examples)
    return manifest


def signing_keys(endpoint: Endpoint) -> list[model.SigningKey] | None:
    """Return the keys that the document gives for an endpoint, newest first, or None when it leaves them as they are."""
    if endpoint.signing_secrets is None:
        return None
    keys = []
    for number, text in enumerate(endpoint.signing_secrets):
        with checks.below(f"signing_secrets[{number}]"):
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


def _require_unique(kind: str, ids: Iterable[str]) -> None:
    seen: dict[str, int] = {}
    for number, row_id in enumerate(ids):
        if row_id in seen:
            raise errors.RegistrationError(f"{kind}[{number}].id", f"{row_id} stands at {kind}[{seen[row_id]}] already")
        seen[row_id] = number


def path_of(location: tuple[int | str, ...]) -> str:
    """Return where in a document a field stands."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path
