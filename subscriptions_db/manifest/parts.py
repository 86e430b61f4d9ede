"""Define the types of an endpoint's parts in a manifest (authentication, TLS, batches, retries), and their base.

Runs in `fanout` commands and in the API. Pure.
"""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic
from pydantic import Field, SecretStr

from subscriptions_db import described
from subscriptions_db.manifest import mistakes

MAX_SECRET = 8_163
"""Most characters of a password, token, key or client secret. A sealed text of 8,163 bytes fills the column, which has 8,192
bytes. A text with other characters than ASCII has more bytes in UTF-8, and the column's constraint may refuse it."""


class ManifestPart(described.DescribedModel):
    """Base of the types of a manifest and of some API requests: refuses unknown fields, and quotes no input in errors."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class AuthFields(ManifestPart):
    """The authentication of requests to an endpoint, beside the signature. With `oauth2`, `secret` is the client secret."""

    kind: Literal["none", "basic", "bearer", "api_key", "oauth2"] = "none"
    """`none`, `basic` (user name and password), `bearer` (a token), `api_key` (a header) or `oauth2` (client credentials)."""
    username: Annotated[str, Field(min_length=1, max_length=200, pattern=mistakes.USERNAME_PATTERN)] | None = None
    """The user name. Required with kind `basic`, refused with others."""
    header: Annotated[str, Field(pattern=mistakes.HEADER_PATTERN)] | None = None
    """The name of the header that has the secret. Required with kind `api_key`, refused with others."""
    secret: Annotated[SecretStr, Field(min_length=1, max_length=MAX_SECRET)] | None = None
    """The password, token, key or client secret. Required with each kind except `none`. No answer shows it."""
    client_id: Annotated[str, Field(pattern=mistakes.CLIENT_ID_PATTERN)] | None = None
    """The id of the OAuth 2.0 client. Required with kind `oauth2`, refused with others."""
    token_url: str | None = None
    """The URL of the token endpoint. Required with kind `oauth2`, refused with others."""
    token_scope: Annotated[str, Field(pattern=mistakes.SCOPE_WORDS_PATTERN, max_length=1000)] | None = None
    """The scopes to request, separated by blanks. Only with kind `oauth2`."""

    @pydantic.model_validator(mode="after")
    def _fits_its_kind(self) -> AuthFields:
        needs = _NEEDS[self.kind]
        given = {name for name in type(self).model_fields if name != "kind" and getattr(self, name) is not None}
        if missing := sorted(needs - given):
            names = " and ".join(missing)
            raise ValueError(f"kind {self.kind} requires {names}: add {names}, or choose another kind")
        if beyond := sorted(given - needs - ({"token_scope"} if self.kind == "oauth2" else set())):
            names = " or ".join(beyond)
            raise ValueError(f"kind {self.kind} does not allow {names}: remove what is not allowed, or choose another kind")
        return self


_NEEDS: dict[str, set[str]] = {
    "none": set(),
    "basic": {"username", "secret"},
    "bearer": {"secret"},
    "api_key": {"header", "secret"},
    "oauth2": {"client_id", "token_url", "secret"},
}


class TlsFields(ManifestPart):
    """TLS settings of connections to an endpoint, where they differ from the system's. Certificates and key are PEM texts."""

    authorities: Annotated[str, Field(max_length=64 * 1024)] | None = None
    """Certificates of the authorities that the platform trusts for this endpoint. Null: the authorities of the system."""
    certificate: Annotated[str, Field(max_length=48 * 1024)] | None = None
    """The client certificate of the platform, with its chain. Null: no client certificate."""
    key: Annotated[SecretStr, Field(max_length=16 * 1024)] | None = None
    """The private key of the client certificate. No answer shows it."""


class BatchFields(ManifestPart):
    """The limits at which a batch is sent, whichever is reached first, and its compression. For endpoints with mode `batch`."""

    max_events: Annotated[int, Field(ge=1, le=10_000)] = 1000
    """Maximum events of a batch."""
    max_wait_s: Annotated[float, Field(gt=0, le=86_400)] = 1
    """Maximum seconds from the first event of a batch until the batch is sent."""
    max_bytes: Annotated[int, Field(ge=4096, le=10 * 1024 * 1024)] = 1024 * 1024
    """Maximum bytes of the body, before compression. A larger event is sent alone."""
    gzip: bool = False
    """Compress the bodies of batches with gzip."""


class RetryFields(ManifestPart):
    """The schedule and the limits of the retry lane for an endpoint. A field that is omitted or null has its default."""

    schedule_s: Annotated[list[Annotated[float, Field(gt=0, le=604_800)]], Field(max_length=50)] | None = None
    """Seconds before each retry, randomised by ±20 %. Empty: a failed delivery is dead-lettered at once. Default: 5 s, 5 min,
    30 min, 2 h, 5 h, 10 h, 10 h."""
    max_age_s: Annotated[float, Field(gt=0, le=2_592_000)] | None = None
    """Seconds that a delivery may wait in the retry lane. Then it becomes a dead letter. Default: 3 days."""
    timeout_s: Annotated[float, Field(gt=0, le=60)] | None = None
    """Maximum duration of one attempt in the retry lane, in seconds. Default: 15."""
