"""The origin by which connections are shared, and the target of one endpoint's requests."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import NamedTuple

import yarl

from delivery.model import Auth, Endpoint


class Origin(NamedTuple):
    """Where a connection leads, for which customer, and with which TLS context. Equal origins may share connections."""

    url: str
    """Scheme, host and port."""
    customer_id: str
    """Customer whose requests the connection carries. It never carries those of two, so a late response stays with its
    customer."""
    tls: ssl.SSLContext | None
    """None for plain http."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A URL with the parts of its requests that never change."""

    url: yarl.URL
    origin: Origin
    head: bytes
    """Request line and all headers that do not depend on the delivery. Ends with CRLF, without the empty line."""
    endpoint: Endpoint
    grant: Grant | None = None
    """The token request whose answer completes `head` for each delivery. None if `head` is complete."""

    def __repr__(self) -> str:
        # `head` contains the endpoint's credentials.
        return f"Target({self.endpoint.endpoint_id})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A token request by client credentials (RFC 6749, section 4.4), ready to be sent."""

    auth: Auth
    """The settings of the request. Endpoints with equal settings share a token."""
    to: Target
    body: bytes
