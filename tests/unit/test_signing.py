"""What we sign, the public libraries verify; what was changed, they refuse."""

import base64
import time

import pytest
import standardwebhooks
import svix.webhooks

from delivery import errors
from delivery.model import SigningKey
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
