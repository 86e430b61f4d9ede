"""The public libraries verify our signatures, and refuse changed content."""

import base64
import time

import pytest
import standardwebhooks
import svix.webhooks
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ed25519

from delivery import errors
from delivery.registry_model import SignatureScheme, SigningKey
from delivery.secret import Secret
from delivery.webhooks.sending import signing
from tests.support import builders

LIBRARIES = [
    pytest.param(standardwebhooks.Webhook, standardwebhooks.WebhookVerificationError, id="standardwebhooks"),
    pytest.param(svix.webhooks.Webhook, svix.webhooks.WebhookVerificationError, id="svix"),
]


def headers(*keys, body=b'{"a":1}', webhook_id="msg_1", at=None):
    at = int(time.time()) if at is None else at
    return {
        "webhook-id": webhook_id,
        "webhook-timestamp": str(at),
        "webhook-signature": signing.sign(keys, webhook_id, at, body),
    }


@pytest.mark.parametrize(("library", "_refusal"), LIBRARIES)
def test_the_public_libraries_verify_a_signature(library, _refusal):
    key = signing.generate()
    library(signing.to_text(key)).verify(b'{"a":1}', headers(key))  # raises if it does not verify


@pytest.mark.parametrize(("library", "_refusal"), LIBRARIES)
def test_during_a_rotation_both_secrets_verify(library, _refusal):
    new, old = signing.generate(), signing.generate()
    for key in (new, old):
        library(signing.to_text(key)).verify(b'{"a":1}', headers(new, old))


@pytest.mark.parametrize(("library", "refusal"), LIBRARIES)
@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"body": b'{"a":2}'}, id="other body"),
        pytest.param({"webhook-id": "msg_2"}, id="other id"),
        pytest.param({"webhook-timestamp": str(int(time.time()) + 100)}, id="other timestamp"),
        pytest.param({"at": int(time.time()) - 3600}, id="an hour old"),
        pytest.param({"key": builders.KEY}, id="other key"),
    ],
)
def test_the_public_libraries_refuse_changed_content(library, refusal, change):
    key = signing.generate()
    signed = headers(change.get("key", key), at=change.get("at"))
    signed |= {name: value for name, value in change.items() if name in signed}
    with pytest.raises(refusal):
        library(signing.to_text(key)).verify(change.get("body", b'{"a":1}'), signed)


RAW_SEED = bytes(range(32))
ASYMMETRIC = SigningKey(secret=Secret(RAW_SEED), scheme=SignatureScheme.ED25519)


def test_ed25519_verifies_with_the_public_key_alone():
    """Standard Webhooks 1.0, "v1a": ed25519 over the same content."""
    public = ed25519.Ed25519PrivateKey.from_private_bytes(RAW_SEED).public_key()
    version, _, signature = signing.sign([ASYMMETRIC], "msg_1", 1_700_000_000, b'{"a":1}').partition(",")
    assert version == "v1a"
    public.verify(base64.b64decode(signature, validate=True), b'msg_1.1700000000.{"a":1}')  # raises if it does not verify
    with pytest.raises(InvalidSignature):
        public.verify(base64.b64decode(signature), b'msg_1.1700000000.{"a":2}')


@pytest.mark.parametrize(("library", "_refusal"), LIBRARIES)
def test_an_hmac_receiver_ignores_the_other_signature(library, _refusal):
    at = int(time.time())
    signature = signing.sign([ASYMMETRIC, builders.KEY], "msg_1", at, b"{}")
    assert [part[:4] for part in signature.split(" ")] == ["v1a,", "v1," + signature.split(" ")[1][3]]
    library(signing.to_text(builders.KEY)).verify(
        b"{}", {"webhook-id": "msg_1", "webhook-timestamp": str(at), "webhook-signature": signature}
    )


@pytest.mark.parametrize(("at", "signatures"), [(999, 2), (1000, 1), (1001, 1)])
def test_a_key_signs_until_it_expires(at, signatures):
    old = SigningKey(secret=Secret(b"o" * 32), expires_at_s=1000.0)
    assert len(signing.sign([builders.KEY, old], "msg_1", at, b"").split(" ")) == signatures


@pytest.mark.parametrize("keys", [[], [SigningKey(secret=Secret(b"o" * 32), expires_at_s=1000.0)]])
def test_signing_without_a_valid_key_is_an_error(keys):
    with pytest.raises(errors.RegistrationError, match="signing_keys"):
        signing.sign(keys, "msg_1", 1000, b"")


@pytest.mark.parametrize("scheme", SignatureScheme)
def test_a_key_round_trips_through_its_text(scheme):
    key = signing.generate(scheme)
    assert signing.from_text(signing.to_text(key)) == key


SEED, PUBLIC = "6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbc=", "1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4="
"""An ed25519 key pair that another implementation publishes as an example."""
PAIR = base64.b64encode(base64.b64decode(SEED) + base64.b64decode(PUBLIC)).decode()


@pytest.mark.parametrize("encoded", [SEED, PAIR])
def test_an_ed25519_key_may_omit_its_public_key(encoded):
    key = signing.from_text("whsk_" + encoded)
    assert key == SigningKey(secret=Secret(base64.b64decode(SEED)), scheme=SignatureScheme.ED25519)
    assert (signing.to_text(key), signing.public_text(key)) == ("whsk_" + PAIR, "whpk_" + PUBLIC)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("plain", "begin with whsec_ or whsk_"),
        ("whpk_" + PUBLIC, "begin with whsec_ or whsk_"),
        ("whsec_%%%%", "is not base64 after whsec_"),
        ("whsec_" + "\u00e9" * 40, "is not base64 after whsec_"),  # regression: a ValueError
        ("whsec_" + base64.b64encode(b"x" * 23).decode(), "HMAC key of 23 bytes; 24 to 64 .* are needed"),
        ("whsec_" + base64.b64encode(b"x" * 65).decode(), "HMAC key of 65 bytes; 24 to 64 .* are needed"),
        ("whsk_" + base64.b64encode(b"x" * 31).decode(), "seed of 31 bytes; 32 .* are needed"),
        ("whsk_" + base64.b64encode(b"x" * 33).decode(), "not its public key"),
        ("whsk_" + base64.b64encode(base64.b64decode(SEED) + b"x" * 32).decode(), "not its public key"),
    ],
)
def test_an_invalid_secret_is_refused_unquoted(text, message):
    with pytest.raises(errors.RegistrationError, match=message) as refused:
        signing.from_text(text)
    assert text not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_secret_does_not_show_in_its_repr():
    assert "hunter2" not in repr(Secret(b"hunter2")) + str(Secret(b"hunter2")) + f"{[Secret(b'hunter2')]}"
