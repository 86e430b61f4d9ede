"""Tokens of a certified OpenID Connect provider, `oidc-provider` on Node.js, open the API."""

import base64
import contextlib
import json
import subprocess
import urllib.parse
import urllib.request

import pytest
from joserfc import jwk

from delivery.config import oidc_settings
from tests.integration.api import world
from tests.support import node_packages

pytestmark = pytest.mark.integration

AUDIENCE = "https://fanout.example.com"
KINDS = {"RS256": ("RSA", 2048), "PS256": ("RSA", 2048), "ES256": ("EC", "P-256")}


@contextlib.contextmanager
def certified(algorithm):
    """Run the provider with a key for this algorithm; yield its issuer."""
    key = jwk.generate_key(*KINDS[algorithm], {"kid": "key of today", "use": "sig", "alg": algorithm})
    folder = node_packages.installed()
    script = node_packages.HERE / "provider.mjs"
    command = node_packages.command(folder, str(script), str(folder), json.dumps({"keys": [key.as_dict(private=True)]}))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def token_of(issuer, scope="fanout:admin"):
    """Return a token that the provider gives the client `ann` for its credentials."""
    with urllib.request.urlopen(f"{issuer}/.well-known/openid-configuration", timeout=10) as answer:  # noqa: S310
        url = json.load(answer)["token_endpoint"]
    body = urllib.parse.urlencode({"grant_type": "client_credentials", "resource": AUDIENCE, "scope": scope})
    credentials = base64.b64encode(b"ann:secret").decode()
    asked = urllib.request.Request(url, body.encode(), {"authorization": f"Basic {credentials}"})  # noqa: S310
    with urllib.request.urlopen(asked, timeout=10) as answer:  # noqa: S310
        return json.load(answer)["access_token"]


@pytest.mark.parametrize("algorithm", KINDS)
def test_a_token_of_a_certified_provider_opens_the_api(postgres, algorithm):
    with certified(algorithm) as issuer:
        oidc = oidc_settings.OidcSettings(issuer=issuer, audience=AUDIENCE, claim="scope", scopes={"fanout:admin": "operator"})
        with world.served(postgres, oidc=oidc) as served:
            ann = served.client(token_of(issuer))
            assert ann.put("/v1/tenants/t3", {}).status == 201
            assert served.audit("t3")[0]["key_id"] == "oidc:ann"
            head, claims, signature = ann.key.split(".")
            forged = claims[:-4] + ("AAAA" if claims[-4:] != "AAAA" else "BBBB")
            assert served.client(f"{head}.{forged}.{signature}").get("/v1/tenants").status == 401
            other = oidc.model_copy(update={"audience": "https://another.example.com"})
            with world.running(served.config.model_copy(update={"oidc": other})) as port:
                assert world.Client(port, ann.key).get("/v1/tenants").status == 401
