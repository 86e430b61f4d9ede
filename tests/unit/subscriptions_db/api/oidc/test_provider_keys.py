"""The API uses a provider's public signature keys. It leaves out other keys, and refuses documents that are no key set."""

import asyncio
import contextlib
from types import SimpleNamespace

import pytest
from joserfc import jwk

from delivery import errors
from delivery.config import oidc_settings
from subscriptions_db.api.contract import problems
from subscriptions_db.api.contract.principals import Scope
from subscriptions_db.api.oidc import provider_keys
from tests.support.tokens import Issuer

ISSUER = Issuer()
ISSUER.add("curve", "EC", "P-256")
RSA, CURVE = ISSUER.key_set()["keys"]
CONFIG = oidc_settings.OidcSettings(issuer=ISSUER.url, audience="fanout", scopes={"admins": "operator"})


def kids(*entries):
    return [key.kid for key in provider_keys.signing_keys({"keys": [*entries, RSA]})]


@pytest.mark.parametrize(
    "entry",
    [
        None,
        {},
        [],
        {"kty": "oct", "kid": "secret", "k": "c2VjcmV0"},
        {"kty": "AKP", "kid": "of-a-later-standard"},
        RSA | {"kid": "for-encryption", "use": "enc"},
        RSA | {"kid": "too-short", "n": RSA["n"][:170]},
        RSA | {"kid": "no-base64", "n": "!" * 400},
        RSA | {"kid": "no-text", "n": [1] * 400},
        {"kty": "RSA", "kid": "incomplete", "n": RSA["n"]},
        CURVE | {"kid": "unknown-curve", "crv": "P-1"},
        CURVE | {"kid": "not-on-the-curve", "x": CURVE["y"]},
    ],
)
def test_an_unusable_key_is_left_out(entry):
    assert kids(entry) == ["first"]


def test_both_kinds_of_keys_are_used():
    assert kids(CURVE) == ["curve", "first"]


@pytest.mark.parametrize("document", [{}, {"keys": None}, {"keys": []}, {"keys": {"first": RSA}}, {"keys": [{"kty": "oct"}]}])
def test_a_document_without_usable_keys_is_refused(document):
    with pytest.raises(ValueError, match="key set has no usable key"):
        provider_keys.signing_keys(document)


def test_the_number_of_keys_is_bounded():
    many = [RSA | {"kid": str(number)} for number in range(200)]
    assert len(provider_keys.signing_keys({"keys": many})) == provider_keys.MAX_KEYS


class Read(provider_keys.ProviderKeys):
    """Keys that were read, of a provider that is not asked again."""

    def __init__(self, *entries):
        super().__init__(CONFIG)
        self._keys, self._read_at = provider_keys.signing_keys({"keys": list(entries)}), self._clock()

    async def read(self):
        pass


def found(keys, kid, algorithm):
    key = asyncio.run(keys.find(kid, algorithm))
    return None if key is None else key.thumbprint()


def test_a_key_is_found_by_its_id_and_the_algorithm_of_the_token():
    thumbprint = jwk.import_key(RSA).thumbprint()
    keys = Read(RSA, CURVE)
    assert found(keys, "first", "RS256") == thumbprint
    assert found(keys, "first", "ES256") is None
    assert found(keys, None, "RS256") == thumbprint
    assert found(keys, "another", "RS256") is None
    assert found(Read(RSA | {"alg": "PS256"}), "first", "RS256") is None
    assert found(Read(RSA, RSA | {"kid": "second"}), None, "RS256") is None


class Provider:
    """A provider that answers every request with one body."""

    def __init__(self, body):
        self.body = body
        self.content = self
        self.status = 200

    @contextlib.asynccontextmanager
    async def get(self, *_, **__):
        yield self

    async def iter_any(self):
        yield self.body


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b'{"keys": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"])
def test_an_answer_that_is_no_usable_json_object_is_a_503(monkeypatch, body):
    """Regression: deep nesting raised RecursionError, so requests with tokens got 500 in place of 503."""
    monkeypatch.setattr(
        provider_keys,
        "aiohttp",
        SimpleNamespace(ClientError=OSError, ClientSession=lambda: contextlib.nullcontext(Provider(body))),
    )
    with pytest.raises(problems.Refused) as found:
        asyncio.run(provider_keys.ProviderKeys(CONFIG).find("first", "RS256"))
    assert found.value.problem.status == 503


@pytest.mark.parametrize("content", [None, "no PEM"])
def test_an_authority_file_that_cannot_be_read_stops_the_start(tmp_path, content):
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(errors.SettingsError, match=r"oidc\.ca_file"):
        provider_keys.ProviderKeys(CONFIG.model_copy(update={"ca_file": str(path)}))


def test_the_scopes_of_the_settings_are_those_of_no_customer():
    for scope in Scope:
        scopes = {"scopes": {"value": scope.value}}
        if scope.is_of_no_customer:
            oidc_settings.OidcSettings(**scopes)
        else:
            with pytest.raises(ValueError, match="scopes"):
                oidc_settings.OidcSettings(**scopes)
