"""Prepare, once per endpoint, the part of a request that does not change from event to event.

Runs in the executors. Must not import pyspark or psycopg. Pure.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass

import yarl

from delivery import errors
from delivery.model import Auth, AuthKind, Endpoint
from delivery.webhooks import guard

USER_AGENT = "fanout-webhooks/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An endpoint, ready to be posted to."""

    endpoint: Endpoint
    url: yarl.URL
    head: bytes
    """Request line and all headers but those of the single delivery; ends with CRLF, without the empty line."""

    def __repr__(self) -> str:
        # `head` carries the endpoint's credentials.
        return f"Target({self.endpoint.endpoint_id})"


def prepare(endpoint: Endpoint, address_guard: guard.Guard) -> Target:
    """Return the endpoint's target; raise TargetRefused when its URL or headers are not allowed.

    Registration refused such an endpoint already; rows may also be written by plain SQL, and rules may have changed since.
    """
    address_guard.check_url(endpoint.url)
    # As it was registered: a `%2F` that becomes a `/` is another URL to some servers.
    url = yarl.URL(endpoint.url, encoded=True)
    lines = [f"POST {url.raw_path_qs or '/'} HTTP/1.1", f"host: {url.host_port_subcomponent}"]
    headers = {
        "user-agent": USER_AGENT,
        "accept": "*/*",
        # A compressed response could unfold without bounds; nothing here needs one.
        "accept-encoding": "identity",
        **dict(_auth_headers(endpoint.auth)),
    }
    lines += [f"{name}: {_checked(name, value)}" for name, value in headers.items()]
    return Target(endpoint=endpoint, url=url, head=("\r\n".join(lines) + "\r\n").encode("ascii"))


def _auth_headers(auth: Auth) -> Iterator[tuple[str, str]]:
    """Yield the header that an endpoint's kind of authentication adds. The signature comes beside it, always."""
    if auth.kind is AuthKind.NONE:
        return
    if auth.secret is None:
        raise errors.TargetRefused("auth", f"{auth.kind} needs a secret")
    try:
        secret = auth.secret.reveal().decode("ascii")
    except UnicodeDecodeError:
        if auth.kind is not AuthKind.BASIC:
            raise errors.TargetRefused("auth", "the secret is not ASCII") from None  # the cause would show the secret
        secret = auth.secret.reveal().decode("utf-8", "surrogateescape")
    if auth.kind is AuthKind.BASIC:
        # RFC 7617, with the charset that it recommends.
        credentials = f"{auth.username}:{secret}".encode("utf-8", "surrogateescape")
        yield "authorization", "Basic " + base64.b64encode(credentials).decode()
    elif auth.kind is AuthKind.BEARER:
        yield "authorization", f"Bearer {secret}"
    else:
        header = auth.header or "x-api-key"
        guard.check_headers({header: secret})
        yield header, secret


def _checked(name: str, value: str) -> str:
    """Return the value; a line break in it would end our header and begin another."""
    if not (value.isascii() and value.isprintable()):
        raise errors.TargetRefused(f"headers.{name}", "a header value is printable ASCII")
    return value
