"""A target has the unchanging part of a request: line, host, authentication. No text of a customer can end a header."""

import base64

import pytest

from delivery import errors
from delivery.registry_model import Auth, AuthKind
from delivery.secret import Secret
from delivery.webhooks.http import guard
from delivery.webhooks.sending import request
from tests.support import builders, certificates

GUARD = guard.Guard()


def head(**fields):
    return request.prepare(builders.endpoint(**fields), GUARD).head.decode().split("\r\n")


def test_the_request_line_carries_path_and_query():
    assert head(url="https://hooks.example.com/a%20b/c?x=1&y=%2F")[:2] == [
        "POST /a%20b/c?x=1&y=%2F HTTP/1.1",
        "host: hooks.example.com",
    ]


def test_a_url_without_a_path_requests_the_root():
    assert head(url="https://hooks.example.com")[0] == "POST / HTTP/1.1"


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://example.com/", "example.com"),
        ("https://example.com:443/", "example.com"),
        ("https://example.com:8443/", "example.com:8443"),
        ("https://[2606:2800:220:1::1]:8443/", "[2606:2800:220:1::1]:8443"),
    ],
)
def test_the_host_header_omits_the_default_port(url, host):
    assert f"host: {host}" in head(url=url)


@pytest.mark.parametrize(
    ("auth", "line"),
    [
        (Auth(), None),
        (
            Auth(kind=AuthKind.BASIC, username="ann", secret=Secret("pä:ss".encode())),
            "authorization: Basic " + base64.b64encode("ann:pä:ss".encode()).decode(),
        ),
        (Auth(kind=AuthKind.BEARER, secret=Secret(b"tok")), "authorization: Bearer tok"),
        (Auth(kind=AuthKind.API_KEY, header="X-Key", secret=Secret(b"k")), "X-Key: k"),
    ],
)
def test_each_kind_of_authentication_adds_its_header(auth, line):
    lines = head(auth=auth)
    assert line is None or line in lines
    assert sum(entry.lower().startswith(("authorization", "x-key")) for entry in lines) == (line is not None)


@pytest.mark.parametrize(
    "auth",
    [
        Auth(kind=AuthKind.BEARER, secret=None),
        Auth(kind=AuthKind.BEARER, secret=Secret(b"tok\r\nx: y")),
        Auth(kind=AuthKind.BEARER, secret=Secret("tök".encode())),
        Auth(kind=AuthKind.API_KEY, header="X-Key", secret=Secret(b"k\r\nhost: elsewhere")),
        Auth(kind=AuthKind.API_KEY, header="Content-Length", secret=Secret(b"0")),
        Auth(kind=AuthKind.API_KEY, header="Transfer-Encoding", secret=Secret(b"chunked")),
    ],
)
def test_invalid_credentials_are_refused_unquoted(auth):
    with pytest.raises(errors.TargetRefused) as refused:
        head(auth=auth)
    assert "tok" not in str(refused.value)


def test_custom_headers_go_with_each_request():
    lines = head(headers=(("X-Environment", "staging"), ("x-team", "a b")))
    assert {"X-Environment: staging", "x-team: a b"} < set(lines)


API_KEY = Auth(kind=AuthKind.API_KEY, header="X-Key", secret=Secret(b"k"))


@pytest.mark.parametrize(
    ("headers", "auth"),
    [
        pytest.param((("X-A", "1"), ("X-A", "2")), Auth(), id="twice"),
        pytest.param((("X-A", "1"), ("x-a", "1")), Auth(), id="twice in other letters"),
        pytest.param((("x-kEY", "mine"),), API_KEY, id="the API key's"),
        pytest.param((("Authorization", "Basic eDp5"),), Auth(), id="credentials that would not be sealed"),
        pytest.param((("User-Agent", "curl"),), Auth(), id="ours"),
        pytest.param((("Webhook-Id", "1"),), Auth(), id="the signature's"),
        pytest.param((("Ce-Id", "1"),), Auth(), id="the event's"),
        pytest.param((("Content-Length", "0"),), Auth(), id="length"),
        pytest.param((("Transfer-Encoding", "chunked"),), Auth(), id="coding"),
        pytest.param((("Host", "elsewhere"),), Auth(), id="host"),
        pytest.param((("Connection", "close"),), Auth(), id="connection"),
        pytest.param((("Expect", "100-continue"),), Auth(), id="expectation"),
        pytest.param((("X-A", "1\r\nhost: elsewhere"),), Auth(), id="line break"),
        pytest.param((("X-A", "\0"),), Auth(), id="NUL"),
        pytest.param((("X-A: 1\r\nX-B", "1"),), Auth(), id="line break in the name"),
        pytest.param((("X-A", "v" * 8192),), Auth(), id="8 KiB value"),
        pytest.param(tuple((f"X-{n}", "1") for n in range(200)), Auth(), id="200 headers"),
    ],
)
def test_a_reserved_custom_header_is_refused(headers, auth):
    with pytest.raises(errors.TargetRefused) as refused:
        head(headers=headers, auth=auth)
    assert refused.value.path.startswith("headers")


def test_endpoints_share_an_origin_unless_tls_differs():
    def origin(**fields):
        return request.prepare(builders.endpoint(**fields), GUARD).origin

    plain = origin(url="https://hooks.example.com/a")
    client = certificates.issue("client", issuer=certificates.authority()).client_tls()
    assert plain == origin(url="https://hooks.example.com/b?c")
    assert plain != origin(url="https://hooks.example.com:8443/a")
    assert plain != origin(url="https://hooks.example.com/a", tls=client)


def test_a_url_refused_by_the_guard_has_no_target():
    with pytest.raises(errors.TargetRefused):
        head(url="https://169.254.169.254/latest/meta-data")


def test_a_target_does_not_show_its_credentials():
    prepared = request.prepare(builders.endpoint(auth=Auth(kind=AuthKind.BEARER, secret=Secret(b"tok"))), GUARD)
    assert "tok" not in repr(prepared)
