"""The beginning of a response's body is kept for the customer, bounded and without credentials."""

import base64
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.webhooks.policy import response_body

SECRET = "hunter2hunter2"


def kept(body, *, headers=(), secrets=(), max_bytes=response_body.MAX_BYTES):
    return response_body.kept(body, headers, secrets, max_bytes)


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b'{"error": "amount is missing"}', '{"error": "amount is missing"}'),
        (b"a\r\n\tb", "a\r\n\tb"),
        (b"caf\xc3\xa9 \xff\x00", "café \ufffd\ufffd"),
        (b"Authorization: Bearer abc.def\nhost: x", "Authorization: ***\nhost: x"),
        (b"Authorization: Digest username=a, response=b", "Authorization: ***"),
        (b"set-cookie: a=b; path=/", "set-cookie: ***"),
        (b'{"Cookie": "a=b; c=d", "x": 1}', '{"Cookie": ***, "x": 1}'),
        (b'{"access_token": "abc", "x": 1}', '{"access_token": ***, "x": 1}'),
        (b'"{\\"password\\":\\"abc\\"}"', '"{\\"password\\":***}"'),
        (b"password=abc&user=ann", "password=***&user=ann"),
        (b"x-api-key: abc next", "x-api-key: *** next"),
        (b"secret='a b' y", "secret=*** y"),
        (b"no Basic YW5uOmh1bnRlcjI= here", "no Basic *** here"),
        (b"https://ann:pw@host/x", "https://***@host/x"),
        (b"whsec_abcdef and fk_abcdefghijkl_xyz", "*** and ***"),
        (b"eyJhbGciOiJIUzI1NiJ9.eyJzdWIi.c2ln end", "*** end"),
        (b"got v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4=", "got ***"),
        (b'{"token": "cut off', '{"token": ***'),
    ],
)
def test_a_text_that_looks_like_a_credential_is_replaced(body, shown):
    assert kept(body) == shown


def test_secrets_of_the_request_are_replaced_wherever_they_stand():
    encoded = base64.b64encode(f"ann:{SECRET}".encode()).decode()
    assert kept(f"got {SECRET}, {encoded}.".encode(), secrets=[SECRET, encoded, "abc"]) == "got ***, ***."


@given(st.integers(0, len(SECRET) + 2))
def test_a_secret_that_the_bound_cuts_is_replaced(before):
    body = b"x" * (64 - before) + SECRET.encode() + b"y"
    found = kept(body, secrets=[SECRET], max_bytes=64)
    assert len(found) <= 64
    assert not set(SECRET) & set(found)


def test_a_body_with_a_content_encoding_is_not_kept():
    assert kept(b"\x1f\x8b", headers=[(b"Content-Encoding", b"gzip")]) == ""
    assert kept(b"plain", headers=[(b"content-encoding", b"identity")]) == "plain"


@given(st.binary(max_size=3000), st.integers(0, 1024))
def test_any_body_is_kept_within_the_bound(body, max_bytes):
    found = kept(body, max_bytes=max_bytes)
    assert len(found.encode()) <= max_bytes
    assert "\0" not in found


@pytest.mark.parametrize("part", [b"token=", b'token:"', b"://", b"bearer ", b"key'", b"eyj", b"authorization:", b"secret\\"])
def test_no_body_takes_quadratic_time(part):
    """16 KiB take milliseconds. In quadratic time they took seconds."""
    body = part * (16 * 1024 // len(part))
    began = time.process_time()
    kept(body, secrets=["x" * 15_000])
    assert time.process_time() - began < 1
