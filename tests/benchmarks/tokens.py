"""Measure what the admission of a request by an API key and by a token costs the API, in CPU.

Run: `python -m tests.benchmarks.tokens [admissions]`. It starts no server: the key and the provider's keys are read already.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import time

from delivery.config import oidc_settings
from subscriptions_db.api.admission import admission
from subscriptions_db.api.contract import keys
from subscriptions_db.api.oidc import provider_keys, tokens
from subscriptions_db.api.server.route_table import ROUTES
from tests.support.tokens import ADMINS, AUDIENCE, Issuer


async def main(count: int) -> None:
    """Print the CPU of one admission, the least of five rounds."""
    issuer = Issuer()
    issuer.add("curve", "EC", "P-256")
    config = oidc_settings.OidcSettings(issuer=issuer.url, audience=AUDIENCE, scopes={ADMINS: "operator"})
    provided = provider_keys.ProviderKeys(config)
    provided._keys, provided._read_at = provider_keys.signing_keys(issuer.key_set()), time.monotonic()
    verifier = tokens.TokenVerifier(config, provided)
    key = f"fk_abcdefghijkl_{secrets.token_urlsafe(keys.SECRET_BYTES)}"
    row = {"key_id": "fk_abcdefghijkl", "customer_id": None, "scope": "operator", "digest": keys.digest_of(key)}
    row |= dict.fromkeys(("tenants", "endpoints", "revoked_at", "expires_at"))

    async def read(_: str) -> dict[str, object]:
        return row

    door = admission.Admission(read, max_per_s=1e9, tokens=verifier)
    route = next(route for route in ROUTES if route.name == "getTenant")
    rsa, curve = issuer.token(), issuer.token("curve", "ES256")
    kinds = {
        "API key": lambda: door.admit(f"Bearer {key}", route),
        "known token": lambda: door.admit(f"Bearer {rsa}", route),
        "new token, RS256": lambda: verifier.verified(rsa),
        "new token, ES256": lambda: verifier.verified(curve),
    }
    for kind, work in kinds.items():
        rounds = []
        for _ in range(5):
            began = time.process_time()
            for _ in range(count):
                await work()
            rounds.append((time.process_time() - began) / count)
        print(f"{kind:16} {min(rounds) * 1e6:6.1f} us")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))
