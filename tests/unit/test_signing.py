"""What we sign, the public libraries verify; what was changed, they refuse."""

import base64
import time

import pytest
import standardwebhooks
import svix.webhooks
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ed25519

from delivery import errors
from delivery.model import SignatureScheme, SigningKey
from delivery.secret import Secret
from delivery.webhooks import signing
from tests import builders

LIBRARIES = [
    pytest.param(standardwebhooks.Webhook, standardwebhooks.WebhookVerificationError, id="standardwebhooks"),
    pytest.param(svix.webhooks.Webhook, svix.webhooks.WebhookVerificationError, id="svix"),
]


def headers(*keys, body=b'{"a":1}', webhook_id="msg_1", at=None):
    at = int(time.time()) if at is None else at
    return {
        "webhook-id": webhook_id,
        "webhook-timestamp": str(at),
        "webhook-signature": signing.sign([SigningKey(secret=key) for key in keys], webhook_id, at, body),
    }


@pytest.mark.parametrize(("library", "_refusal"), LIBRARIES)
def test_the_public_libraries_verify_a_signature(library, _refusal):
    key = signing.generate_key()
    library(signing.to_text(key)).verify(b'{"a":1}', headers(key))  # raises when it does not


@pytest.mark.parametrize(("library", "_refusal"), LIBRARIES)
def test_while_a_rotation_lasts_the_old_and_the_new_secret_both_verify(library, _refusal):
    new, old = signing.generate_key(), signing.generate_key()
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
        pytest.param({"key": builders.KEY.secret}, id="other key"),
    ],
)
def test_the_public_libraries_refuse_what_was_changed(library, refusal, change):
    key = signing.generate_key()
    signed = headers(change.get("key", key), at=change.get("at"))
    signed |= {name: value for name, value in change.items() if name in signed}
    with pytest.raises(refusal):
        library(signing.to_text(key)).verify(change.get("body", b'{"a":1}'), signed)


SEED = bytes(range(32))
ASYMMETRIC = SigningKey(secret=Secret(SEED), scheme=SignatureScheme.ED25519)


def test_an_ed25519_signature_verifies_with_the_public_key_alone():
    """Standard Webhooks 1.0, "v1a": ed25519 over the same content."""
    public = ed25519.Ed25519PrivateKey.from_private_bytes(SEED).public_key()
    version, _, signature = signing.sign([ASYMMETRIC], "msg_1", 1_700_000_000, b'{"a":1}').partition(",")
    assert version == "v1a"
    public.verify(base64.b64decode(signature, validate=True), b'msg_1.1700000000.{"a":1}')  # raises when it does not
    with pytest.raises(InvalidSignature):
        public.verify(base64.b64decode(signature), b'msg_1.1700000000.{"a":2}')


@pytest.mark.parametrize(("library", "_refusal"), LIBRARIES)
def test_a_receiver_that_knows_only_hmac_passes_over_the_other_signature(library, _refusal):
    at = int(time.time())
    signature = signing.sign([ASYMMETRIC, builders.KEY], "msg_1", at, b"{}")
    assert [one[:4] for one in signature.split(" ")] == ["v1a,", "v1," + signature.split(" ")[1][3]]
    library(signing.to_text(builders.KEY.secret)).verify(
        b"{}", {"webhook-id": "msg_1", "webhook-timestamp": str(at), "webhook-signature": signature}
    )


@pytest.mark.parametrize(("at", "signatures"), [(999, 2), (1000, 1), (1001, 1)])
def test_a_key_signs_until_it_expires(at, signatures):
    old = SigningKey(secret=Secret(b"o" * 32), expires_at_s=1000.0)
    assert len(signing.sign([builders.KEY, old], "msg_1", at, b"").split(" ")) == signatures


@pytest.mark.parametrize("keys", [[], [SigningKey(secret=Secret(b"o" * 32), expires_at_s=1000.0)]])
def test_without_a_key_that_holds_there_is_no_signature_and_that_is_an_error(keys):
    with pytest.raises(errors.RegistrationError, match="signing_keys"):
        signing.sign(keys, "msg_1", 1000, b"")


def test_a_secret_survives_the_way_to_its_text_and_back():
    key = signing.generate_key()
    assert signing.from_text(signing.to_text(key)) == key


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "whsec_%%%%",
        "whsec_" + base64.b64encode(b"x" * 23).decode(),  # one byte short of 24
        "whsec_" + base64.b64encode(b"x" * 65).decode(),  # one byte over 64
    ],
)
def test_a_text_that_is_no_secret_is_refused_without_being_quoted(text):
    with pytest.raises(errors.RegistrationError) as refused:
        signing.from_text(text)
    assert text not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_secret_does_not_show_in_its_repr():
    assert "hunter2" not in repr(Secret(b"hunter2")) + str(Secret(b"hunter2")) + f"{[Secret(b'hunter2')]}"
