"""OAuth2 over real sockets: the token server is a host like any other, guarded, bounded in time, never followed elsewhere."""

import asyncio
import base64
import time

import orjson
import pytest

from delivery.registry_model import Auth, AuthKind
from delivery.secret import Secret
from delivery.webhooks.http import guard
from delivery.webhooks.sending import sender
from tests.integration import serving
from tests.integration.serving import OK, OPEN, in_turn, saying
from tests.support import builders

pytestmark = pytest.mark.integration
CREDENTIALS = b"authorization: Basic " + base64.b64encode(b"client:s3cret")


def granting(token, **fields):
    body = orjson.dumps({"access_token": token, "token_type": "bearer", "expires_in": 60} | fields)
    return saying(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))


async def drip(_, writer):
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"x: y\r\n")
        await writer.drain()
        await asyncio.sleep(0.02)


def attempted(token_answer, endpoint_answer=None, *, address_guard=OPEN, token_url=None, times=1, timeout_s=1.0):
    """Return (attempts, raw token requests, raw deliveries)."""

    async def main():
        tokens, hooks = serving.serve(token_answer), serving.serve(endpoint_answer or saying(OK))
        async with tokens as token_server, hooks as server, serving.network(address_guard) as network:
            using = sender.Sender(network, OPEN, timeout_s=timeout_s, clock=time.time)
            auth = Auth(
                kind=AuthKind.OAUTH2,
                client_id="client",
                secret=Secret(b"s3cret"),
                token_url=token_url or token_server.url(path="/token"),
            )
            delivery = builders.delivery(endpoint=builders.endpoint(url=server.url(), auth=auth))
            made = await asyncio.gather(*(using.attempt(delivery, 1) for _ in range(times)))
        return made, token_server.requests, server.requests

    return serving.run(main())


def test_many_deliveries_carry_the_token_of_one_request():
    made, token_requests, requests = attempted(granting("t1"), times=20)
    assert {attempt.error_class for attempt in made} == {None}
    [asked] = token_requests
    assert asked.startswith(b"POST /token HTTP/1.1\r\n")
    assert CREDENTIALS in asked.split(b"\r\n")
    assert asked.endswith(b"\r\n\r\ngrant_type=client_credentials")
    assert len([request for request in requests if b"\r\nauthorization: Bearer t1\r\n" in request]) == 20


def test_a_token_that_was_taken_back_is_replaced_within_the_attempt():
    unauthorized = saying(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n")
    [made], _, requests = attempted(in_turn(granting("t1"), granting("t2")), in_turn(unauthorized, saying(OK)))
    assert (made.status, made.error_class) == (200, None)
    ids = {line for request in requests for line in request.split(b"\r\n") if line.startswith(b"webhook-id: ")}
    assert (len(requests), len(ids)) == (2, 1)


def test_a_redirect_of_the_token_server_is_not_followed():
    elsewhere = saying(b"HTTP/1.1 307 Elsewhere\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n")
    [made], token_requests, requests = attempted(elsewhere)
    assert (made.error_class, made.detail) == (
        "token_refused",
        "the token server answered 307, so the attempt failed: check that server and auth.token_url",
    )
    assert (len(token_requests), requests) == (1, [])


def test_a_token_server_that_drips_takes_no_more_than_the_attempts_time():
    began = time.monotonic()
    [made], _, requests = attempted(drip, timeout_s=0.3)
    assert (made.error_class, requests) == ("token_refused", [])
    assert time.monotonic() - began < 2


def test_the_guard_stands_before_the_token_server_too():
    """The name was public when the endpoint was registered; now it leads inside."""
    away = "the host name leads to no address that is allowed"
    closed = guard.Guard(allow_http=True, allow_ports=())
    [made], token_requests, _ = attempted(granting("t1"), address_guard=closed)
    assert (made.error_class, made.detail) == (
        "token_refused",
        f"no token from the token server ({away}), so the attempt failed: check that server and auth.token_url",
    )
    assert token_requests == []
