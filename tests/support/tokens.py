"""An issuer of tokens: its keys, its JWKS, and tokens with any claims and headers."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

from joserfc import jwk, jws, jwt

AUDIENCE = "fanout"
ADMINS = "fanout-admins"
CANARY = "canary-of-a-token"
"""Value of a claim in each token. A log or answer that leaks a token has this text in base64, so tests find the leak."""


class Issuer:
    """Signs tokens with its keys. Each key has a name, the `kid`."""

    def __init__(self, url: str = "https://login.example.com") -> None:
        self.url = url
        self.keys: dict[str, jwk.RSAKey | jwk.ECKey] = {}
        self.add("first")

    def add(self, kid: str, kind: str = "RSA", size: int | str = 2048) -> None:
        self.keys[kid] = jwk.generate_key(kind, size, {"kid": kid, "use": "sig"})  # type: ignore[assignment]

    def key_set(self) -> dict[str, Any]:
        return {"keys": [key.as_dict(private=False) for key in self.keys.values()]}

    def claims(self, **fields: Any) -> dict[str, Any]:
        """Return the claims of a valid token. A field that is None is left out."""
        now = int(time.time())
        whole = {
            "iss": self.url, "aud": AUDIENCE, "sub": "ann", "iat": now, "exp": now + 300, "groups": [ADMINS], "canary": CANARY,
        } | fields  # fmt: skip
        return {name: value for name, value in whole.items() if value is not None}

    def token(self, kid: str = "first", algorithm: str = "RS256", header: dict[str, Any] | None = None, **fields: Any) -> str:
        """Return a token, signed with the key `kid`."""
        whole = {"alg": algorithm, "kid": kid, "typ": "JWT"} | (header or {})
        registry = jws.JWSRegistry(algorithms=list(jws.JWSRegistry.algorithms), strict_check_header=False)
        return jwt.encode(whole, self.claims(**fields), self.keys[kid], registry=registry)


def part(document: object) -> str:
    """Return a part of a token: JSON or bytes in base64."""
    content = document if isinstance(document, bytes) else json.dumps(document).encode()
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
