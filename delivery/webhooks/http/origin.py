"""Define the origin and the target of requests. Requests share a connection only if their origins are equal."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import NamedTuple

import yarl

from delivery.registry_model import Auth, Endpoint


class Origin(NamedTuple):
    """The server, the customer and the TLS context of a connection. Only requests with equal origins share a connection."""

    url: str
    """Scheme, host and port."""
    customer_id: str
    """Customer of the requests. Customers share no connection, so a late response never reaches another customer."""
    tls: ssl.SSLContext | None
    """The TLS context of the connection. None: plain http."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The URL of an endpoint or a token server, with the parts of its requests that are the same for each delivery."""

    url: yarl.URL
    origin: Origin
    """Origin of the connections for these requests."""
    head: bytes
    """Request line and all headers that do not depend on the delivery. Ends with CRLF, without the empty line."""
    endpoint: Endpoint
    grant: Grant | None = None
    """Request that fetches the endpoint's access token. Each delivery sends the token in a header after `head`. None: the
    endpoint needs no access token."""

    def __repr__(self) -> str:
        # `head` contains the endpoint's credentials.
        return f"Target({self.endpoint.endpoint_id})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A request for an access token by client credentials (RFC 6749, section 4.4), ready to be sent."""

    auth: Auth
    """The endpoint's settings for the token. Endpoints with equal settings share a token."""
    to: Target
    """Target of the request: the token server."""
    body: bytes
    """Body of the request: grant type and, if the endpoint names any, scopes. The client secret is in a header in `to.head`."""
