"""Prepare all parts of a request that do not change from event to event.

The sender keeps these parts until the endpoint changes. This module handles the special settings of an endpoint, so that
attempts to a plain endpoint cost nothing extra.
"""

from __future__ import annotations

import base64
import re
import urllib.parse
from collections.abc import Iterator

import yarl

from delivery import errors
from delivery.registry_model import Auth, AuthKind, Endpoint, Tls
from delivery.webhooks.http import guard, tls
from delivery.webhooks.http.origin import Grant, Origin, Target
from delivery.webhooks.sending import handshake

USER_AGENT = "fanout-webhooks/1"
LONG_PART = 16
"""Characters of a part of a URL's path or query from which on it may be a secret. Many receivers of webhooks know their senders
by such a part. Shorter parts are mostly words, which help to understand a response."""
_URL_PARTS = re.compile("[/?&=;]")


def prepare(endpoint: Endpoint, address_guard: guard.Guard) -> Target:
    """Return the target of requests to an endpoint; raise TargetRefused if the endpoint's settings allow no valid request.

    Registration refuses such settings. But rows may also be written by plain SQL, and rules may have changed since.
    """
    address_guard.check_url(endpoint.url)
    auth = dict(_auth_headers(endpoint.auth))
    _check_custom(endpoint.headers, auth)
    # The URL stays as registered: for some servers a `%2F` that becomes a `/` is another URL.
    url = yarl.URL(endpoint.url, encoded=True)
    permitted = {} if endpoint.origin is None else {handshake.REQUEST_ORIGIN.lower(): endpoint.origin}
    return Target(
        endpoint=endpoint,
        url=url,
        origin=_origin(url, endpoint, endpoint.tls),
        head=_head(url, {"accept": "*/*"} | permitted | auth | dict(endpoint.headers)),
        grant=_grant(endpoint, address_guard) if endpoint.auth.kind is AuthKind.OAUTH2 else None,
    )


def secrets(endpoint: Endpoint) -> Iterator[str]:
    """Yield the texts of an endpoint's requests that no log may show.

    These are the values of the endpoint's own headers, the secret of `auth`, and long parts of the URL's path and query. For
    basic authentication, the base64 text in the header is included. Access tokens are not included.
    """
    yield from (value for _, value in endpoint.headers)
    yield from (part for part in _URL_PARTS.split(yarl.URL(endpoint.url, encoded=True).raw_path_qs) if len(part) >= LONG_PART)
    if endpoint.auth.secret is not None:
        yield endpoint.auth.secret.reveal().decode(errors="replace")
        if endpoint.auth.kind is AuthKind.BASIC:
            yield dict(_auth_headers(endpoint.auth))["authorization"].removeprefix("Basic ")


def prepare_handshake(endpoint: Endpoint, question: handshake.Question, address_guard: guard.Guard) -> Target:
    """Return the target of the request that asks a receiver for permission.

    Raise TargetRefused if the endpoint's URL or TLS settings, or a header of the question, allow no valid request. The receiver
    might not belong to the customer, so the request has neither the endpoint's `auth` nor its headers. The endpoint's client
    certificate is used, because a receiver with mutual TLS cannot be asked without it. A certificate reveals no secret.
    """
    address_guard.check_url(endpoint.url)
    url = yarl.URL(endpoint.url, encoded=True)
    headers = {"accept": "*/*"} | {name.lower(): value for name, value in question.headers()}
    return Target(
        endpoint=endpoint, url=url, origin=_origin(url, endpoint, endpoint.tls), head=_head(url, headers, method="OPTIONS")
    )


def _origin(url: yarl.URL, endpoint: Endpoint, settings: Tls | None) -> Origin:
    return Origin(str(url.origin()), endpoint.customer_id, tls.context(settings) if url.scheme == "https" else None)


def _head(url: yarl.URL, headers: dict[str, str], method: str = "POST") -> bytes:
    # A compressed response could expand without bounds, and none is needed.
    headers = {"user-agent": USER_AGENT, "accept-encoding": "identity"} | headers
    lines = [f"{method} {url.raw_path_qs or '/'} HTTP/1.1", f"host: {url.host_port_subcomponent}"]
    lines += [f"{name}: {_checked(name, value)}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n").encode("ascii")


def _check_custom(headers: tuple[tuple[str, str], ...], auth: dict[str, str]) -> None:
    """Raise TargetRefused for a header that is not allowed, is duplicated, is set by `auth`, or is `authorization`.

    `authorization` is refused because it belongs in `auth`: the registry encrypts the credentials of `auth`, but no headers.
    """
    guard.check_headers(dict(headers))
    of_auth = {"authorization", *(name.lower() for name in auth)}
    seen: set[str] = set()
    for name, _ in headers:
        if name.lower() in of_auth:
            raise errors.TargetRefused(f"headers.{name}", "belongs in auth: leave it out here, and give credentials by auth")
        if name.lower() in seen:
            raise errors.TargetRefused(f"headers.{name}", "is given twice, in upper and lower case: give it once")
        seen.add(name.lower())


def _auth_headers(auth: Auth) -> Iterator[tuple[str, str]]:
    """Yield the name and value of the header for the endpoint's kind of authentication; nothing for `none` and `oauth2`.

    Raise TargetRefused if the secret is missing or does not fit into a header, or if the name of an API key's header is not
    allowed. The signature is always sent as well.
    """
    if auth.kind in {AuthKind.NONE, AuthKind.OAUTH2}:
        return
    if auth.secret is None:
        raise errors.TargetRefused("auth", f"{auth.kind} needs a secret: add it")
    if auth.kind is AuthKind.BASIC:
        # RFC 7617, with its recommended charset.
        yield "authorization", _basic(f"{auth.username}:".encode() + auth.secret.reveal())
        return
    secret = auth.secret.reveal().decode("latin-1")
    if not (secret.isascii() and secret.isprintable()):
        problem = "the secret is not printable ASCII, and a header takes no other text: use another secret"
        raise errors.TargetRefused("auth", problem)
    if auth.kind is AuthKind.BEARER:
        yield "authorization", f"Bearer {secret}"
    elif auth.kind is AuthKind.API_KEY:
        header = auth.header or "x-api-key"
        guard.check_headers({header: secret})
        yield header, secret


def _grant(endpoint: Endpoint, address_guard: guard.Guard) -> Grant:
    """Return the token request of an endpoint with `oauth2`; raise TargetRefused if a setting is missing or refused.

    The endpoint's `tls` (certificate and authorities) is not used: the token server may belong to another party.
    """
    auth = endpoint.auth
    if auth.secret is None or not auth.client_id or not auth.token_url:
        raise errors.TargetRefused("auth", "oauth2 needs client_id, token_url and a secret: add what is missing")
    try:
        address_guard.check_url(auth.token_url)
    except errors.TargetRefused as exc:
        raise errors.TargetRefused("auth.token_url", exc.problem) from None
    url = yarl.URL(auth.token_url, encoded=True)
    # client_secret_basic: each part is form-encoded before they are joined (RFC 6749, section 2.3.1).
    credentials = f"{urllib.parse.quote_plus(auth.client_id)}:{urllib.parse.quote_plus(auth.secret.reveal())}"
    headers = {
        "accept": "application/json",
        "content-type": "application/x-www-form-urlencoded",
        "authorization": _basic(credentials.encode()),
    }
    fields = {"grant_type": "client_credentials"} | ({"scope": auth.token_scope} if auth.token_scope else {})
    to = Target(endpoint=endpoint, url=url, origin=_origin(url, endpoint, None), head=_head(url, headers))
    return Grant(auth=auth, to=to, body=urllib.parse.urlencode(fields).encode())


def _basic(credentials: bytes) -> str:
    return "Basic " + base64.b64encode(credentials).decode()


def _checked(name: str, value: str) -> str:
    """Return the value of a header; raise TargetRefused if it is not printable ASCII.

    A line break in the value would end the header and begin another one.
    """
    if not (value.isascii() and value.isprintable()):
        raise errors.TargetRefused(f"headers.{name}", "its value must be printable ASCII")
    return value
