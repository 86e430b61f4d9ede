"""The receivers of `fanout listen` and `fanout smoke-test` accept the platform's signatures, and no others."""

import socket
import threading
import time

import pytest

from delivery import errors
from delivery.webhooks.sending import signing
from fanout.local import receiver
from tests.support import builders

SECRET = "whsec_" + "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
BODY, NOW = b'{"id":"e1"}', int(time.time())
CLOSED = r"cannot be opened \(Address already in use\), so nothing is received: choose another port with --port$"
NOT_TEXT = b"\xff\x00"
VERIFIERS = pytest.mark.parametrize("verify", [receiver.is_signed, receiver.is_signed_by_hmac])


def signed(body=BODY, **changed):
    headers = {"webhook-id": "w1", "webhook-timestamp": str(NOW)}
    return headers | {"webhook-signature": signing.sign([builders.KEY], "w1", NOW, body)} | changed


@VERIFIERS
@pytest.mark.parametrize("body", [BODY, NOT_TEXT])
def test_a_signature_of_the_platform_is_valid(verify, body):
    """Regression: `fanout listen` said NOT VERIFIED of each opaque payload that was no UTF-8."""
    assert verify(body, signed(body), [SECRET])
    assert verify(body, signed(body, **{"webhook-signature": "v1,AAAA " + signed(body)["webhook-signature"]}), [SECRET])


@VERIFIERS
@pytest.mark.parametrize(
    ("body", "changed"),
    [
        (b'{"id":"e2"}', {}),
        (NOT_TEXT, {}),
        (BODY, {"webhook-id": "w2"}),
        (BODY, {"webhook-timestamp": str(NOW + 1)}),
        (BODY, {"webhook-signature": ""}),
        (BODY, {"webhook-signature": "v1,AAAA"}),
        (NOT_TEXT, {"webhook-signature": "v1,\xe9"}),
        (NOT_TEXT, {"webhook-id": "w\udcff"}),
    ],
)
def test_a_signature_of_another_request_is_not_valid(verify, body, changed):
    assert not verify(body, signed(**changed), [SECRET])


def test_a_port_in_use_is_refused_and_no_thread_stays():
    """Regression: the thread ran on, and the message of `fanout listen` named an option of `fanout smoke-test`."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listening = receiver.Receiver(secrets_of=lambda _: [], on_received=print, port=taken.getsockname()[1])
        with pytest.raises(errors.LocalStackError, match=CLOSED), listening:
            pass
    assert "receiver" not in {thread.name for thread in threading.enumerate()}
