"""A failed attempt keeps harmless headers of its response: a fixed list, bounded, without anything like a credential."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.model import Attempt
from delivery.webhooks.policy import response_headers

ATTEMPT = Attempt(1, 0, 1.0, 503, "unavailable")


@pytest.mark.parametrize(
    ("header", "kept"),
    [
        ((b"Content-Type", b" text/html; charset=utf-8 "), {"content-type": "text/html; charset=utf-8"}),
        ((b"X-Request-ID", b"7c9e6679-7425-40de-944b-e07fc1f90ae7"), {"x-request-id": "7c9e6679-7425-40de-944b-e07fc1f90ae7"}),
        ((b"server", b"caf\xe9/1.0\0"), {"server": "caf\u00e9/1.0\ufffd"}),
        ((b"server", b"x" * 200), {"server": "x" * 128}),
        ((b"Set-Cookie", b"a=b"), {}),
        ((b"WWW-Authenticate", b"Basic"), {}),
        ((b"Authorization", b"Bearer abc"), {}),
        ((b"Location", b"https://example.com/?token=abc"), {}),
        ((b"X-Api-Key", b"abc"), {}),
        ((b"x-unknown", b"1"), {}),
        ((b"server", b"Bearer abc"), {"server": "***"}),
        ((b"via", b"1.1 https://ann:hunter2@proxy"), {"via": "***"}),
        ((b"x-request-id", b"whsec_abc"), {"x-request-id": "***"}),
        ((b"x-correlation-id", b"eyJhbGciOiJIUzI1NiJ9.e30.abc"), {"x-correlation-id": "***"}),
        ((b"server", b"x" * 200 + b" API-Key: abc"), {"server": "***"}),
    ],
)
def test_only_listed_headers_are_kept_and_no_credential(header, kept):
    assert response_headers.kept([header]) == kept


def test_of_a_repeated_header_the_first_is_kept():
    assert response_headers.kept([(b"via", b"1.1 a"), (b"date", b"now"), (b"VIA", b"1.1 b")]) == {"via": "1.1 a", "date": "now"}


def test_headers_beyond_the_bound_are_left_out():
    found = response_headers.kept([(name, b"x" * 500) for name in sorted(response_headers.ALLOWED)])
    assert 900 < sum(len(name) + len(value) for name, value in found.items()) <= response_headers.MAX_BYTES


names = st.sampled_from([name.title() for name in response_headers.ALLOWED]) | st.binary(max_size=20)


@given(st.lists(st.tuples(names, st.binary(max_size=300)), max_size=30))
def test_any_headers_are_kept_within_the_bounds(headers):
    found = response_headers.kept(headers)
    assert {name.encode() for name in found} <= response_headers.ALLOWED
    assert sum(len(name) + len(value) for name, value in found.items()) <= response_headers.MAX_BYTES
    assert all(len(value) <= response_headers.MAX_VALUE_BYTES and "\0" not in value for value in found.values())


def test_headers_are_no_part_of_the_tuple():
    made = response_headers.attach(ATTEMPT, {"server": "nginx"}, "away")
    assert response_headers.body_of(made) == "away"
    assert response_headers.body_of(ATTEMPT) == ""
    assert (made, len(made), response_headers.of(made)) == (ATTEMPT, len(ATTEMPT), {"server": "nginx"})
    assert response_headers.of(ATTEMPT) == response_headers.of(response_headers.attach(ATTEMPT, {})) == {}
    assert response_headers.of(made._replace(response=b"")) == {}
