"""An endpoint is checked as a whole: each mistake is named by its path, and no secret is quoted."""

import pytest

from delivery import errors
from delivery.registry_model import Auth, AuthKind, SignatureScheme, SigningKey, Tls
from delivery.secret import Secret
from delivery.webhooks.http import guard
from subscriptions_db.snapshot import endpoint_checks
from tests.support import builders, certificates

GUARD = guard.Guard()
OAUTH2 = {"kind": AuthKind.OAUTH2, "client_id": "us", "secret": Secret(b"hunter2")}
CLIENT = certificates.issue("client")
KEY = Secret(CLIENT.key.encode())


def hmac_key(length):
    return SigningKey(secret=Secret(b"x" * length))


def tls(**fields):
    return {"tls": Tls(**{"certificate": CLIENT.pem, "key": KEY} | fields)}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"headers": (("X-Team", "billing"), ("X-Stage", "live"))},
        {"auth": Auth(**OAUTH2, token_url="https://login.example.com/token", token_scope="a b")},
        {"tls": Tls(authorities=certificates.issue("one").pem + certificates.issue("two").pem)},
        tls(),
        tls(certificate=CLIENT.pem + certificates.issue("intermediate").pem),
        {"tls": certificates.rsa_client_tls(4096, 2048)},
        {"signing_keys": (hmac_key(24), SigningKey(secret=Secret(b"x" * 32), scheme=SignatureScheme.ED25519))},
    ],
)
def test_a_good_endpoint_passes(fields):
    endpoint_checks.check_endpoint(builders.endpoint(**fields), GUARD)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"url": "http://example.com/"}, "url: must begin with https://"),
        ({"auth": Auth(kind=AuthKind.BEARER)}, "auth: bearer needs a secret"),
        ({"auth": Auth(kind=AuthKind.BEARER, secret=Secret(b"hunter2\r\nx: y"))}, "auth: the secret is not printable ASCII"),
        ({"auth": Auth(kind=AuthKind.API_KEY, header="Host", secret=Secret(b"hunter2"))}, "auth.headers.Host: is set by"),
        ({"auth": Auth(**OAUTH2, token_url="https://10.0.0.1/token")}, "auth.token_url: the address is not allowed"),
        ({"headers": (("Transfer-Encoding", "chunked"),)}, "headers.Transfer-Encoding: is set by the platform"),
        ({"headers": (("X-A", "a\r\nb"),)}, "headers.X-A: its value must be printable"),
        ({"headers": (("X-A", "1"), ("x-a", "2"))}, "headers.x-a: is given twice"),
        ({"headers": (("Authorization", "hunter2"),)}, "headers.Authorization: belongs in auth"),
        (
            {"headers": (("X-Key", "1"),), "auth": Auth(kind=AuthKind.API_KEY, header="x-key", secret=Secret(b"hunter2"))},
            "headers.X-Key: belongs in auth",
        ),
        ({"headers": tuple((f"X-{n}", "v" * 4096) for n in range(4))}, "headers: have 16428 bytes as JSON; at most 16384"),
        ({"tls": Tls(authorities="trust me")}, "tls.authorities: is not a list of PEM certificates"),
        ({"tls": Tls(authorities=CLIENT.pem + "ä")}, "tls.authorities: is not a list of PEM certificates in ASCII"),
        ({"tls": Tls(authorities=certificates.of_unknown_version())}, "tls.authorities: is not a list of PEM certificates"),
        (tls(certificate=None), "tls: certificate and key must be given together"),
        (tls(key=None), "tls: certificate and key must be given together"),
        (tls(certificate=CLIENT.key), "tls.certificate: is not a list of PEM certificates"),
        (tls(key=Secret(b"hunter2")), "tls.key: is not a PEM private key"),
        (tls(key=Secret(CLIENT.locked_key.encode())), "tls.key: has a password"),
        (tls(key=Secret(certificates.issue("other").key.encode())), "tls.key: is not the key of the first certificate"),
        (tls(certificate=certificates.issue("issuer").pem + CLIENT.pem), "tls.key: is not the key of"),
        ({"tls": certificates.rsa_client_tls(4097, 2048)}, "tls.key: is an RSA key of more than 4,096 bits"),
        ({"tls": certificates.rsa_client_tls(2048, 9000)}, "tls.key: is an RSA key of more than 4,096 bits, or with longer"),
        (tls(key=Secret(certificates.dsa_key().encode())), "tls.key: is a key of another kind. Use a certificate with RSA"),
        (tls(certificate=certificates.of_unknown_curve()), "tls.certificate: has a key of an unknown kind or curve"),
        ({"signing_keys": (builders.KEY, hmac_key(1))}, "signing_secrets[1]: is an HMAC key of 1 bytes; 24 to 64 "),
        (
            {"signing_keys": (SigningKey(secret=Secret(b"x" * 31), scheme=SignatureScheme.ED25519),)},
            "signing_secrets[0]: is an ed25519 seed of 31 bytes; 32 ",
        ),
        ({"signing_keys": (builders.KEY,) * 6}, "signing_secrets: has more than 5"),
    ],
)  # fmt: skip
def test_a_mistake_of_an_endpoint_is_named_by_its_path(fields, said):
    with pytest.raises(errors.RegistrationError) as refused:
        endpoint_checks.check_endpoint(builders.endpoint(**fields), GUARD)
    assert said in str(refused.value)
    assert "hunter2" not in str(refused.value)
    assert refused.value.__cause__ is None
