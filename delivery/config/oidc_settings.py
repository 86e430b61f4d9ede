"""The settings of the OpenID Connect provider. See `delivery.config.settings`."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic
from pydantic import Field

from delivery.config.setting_types import Area, Matching, Seconds, pairs

_ISSUER = Matching(
    r"(https://[^@\s?#]+|http://(127\.0\.0\.1|localhost)(:\d+)?(/[^@\s?#]*)?)?",
    "must be an https:// URL, or an http:// URL of this machine, without a user name and a query",
)


class OidcSettings(Area):
    """OpenID Connect tokens, by which the operator's people and programs use the HTTP API (docs/api.md#tokens)."""

    issuer: Annotated[str, _ISSUER] = ""
    """URL of the provider, exactly as in the claim `iss` of its tokens, such as `https://login.example.com/realms/ops`. The API
    reads the provider's keys from there. Plain http is for a provider on this machine only. Empty: no token is accepted."""
    audience: str = ""
    """The claim `aud` that a token must have, such as `fanout`: the name of this API at the provider. A token for another
    application of the same provider is refused."""
    claim: Annotated[str, Field(min_length=1)] = "groups"
    """Claim that gives a token its scope: the name of the claim, or a dotted path such as `realm_access.roles`. The claim is a
    list of texts, or one text of words with spaces between them."""
    scopes: dict[str, Literal["operator", "executor", "publisher"]] = {}
    """Value of the claim → scope (`fanout-admins = "operator"`). If a token has several of the values, the first entry of this
    setting that applies decides. A token with none of the values is refused. In the environment:
    `value1=scope1,value2=scope2`."""
    subject_claim: Annotated[str, Field(min_length=1)] = "sub"
    """Claim that names the caller in the audit log, as `oidc:…`, and for the rate limit. Users of the provider
    must not be able to choose or change this claim. So `preferred_username` is safe only if the provider forbids its change."""
    leeway_s: Annotated[int, Field(ge=0, le=300)] = 30
    """Seconds by which the clocks of the provider and the API may differ."""
    ca_file: str = ""
    """PEM file of the authorities that the API trusts for the provider; empty: those of the system."""
    timeout_s: Seconds = 5
    """Longest time to read the provider's keys."""

    _from_text = pydantic.field_validator("scopes", mode="before")(pairs)

    @pydantic.model_validator(mode="after")
    def _is_whole(self) -> OidcSettings:
        if self.issuer and not self.audience:
            raise ValueError(
                "oidc.audience is empty, and oidc.issuer is set: set oidc.audience to the claim `aud` of tokens for this API"
            )
        if self.issuer and not self.scopes:
            raise ValueError(
                'oidc.scopes is empty, and oidc.issuer is set: set oidc.scopes, such as `fanout-admins = "operator"`'
            )
        return self

    @property
    def is_on(self) -> bool:
        """Return True if the API accepts tokens."""
        return bool(self.issuer)
