"""Name where a request goes: the origin that connections are shared by, and the target of one endpoint's requests.

Runs in the executors.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import NamedTuple

import yarl

from delivery.model import Auth, Endpoint


class Origin(NamedTuple):
    """Where a connection leads, for whom, and by which trust and identity: what is equal in all may share connections."""

    url: str
    """Scheme, host and port."""
    customer_id: str
    """Whose requests go there: no connection carries those of two. An answer that comes late is one customer's own at worst."""
    tls: ssl.SSLContext | None
    """None for plain http."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A URL, ready to be posted to, or asked."""

    url: yarl.URL
    origin: Origin
    head: bytes
    """Request line and all headers but those of the single delivery; ends with CRLF, without the empty line."""
    endpoint: Endpoint
    grant: Grant | None = None
    """How to come by the token that goes with each request; None where `head` holds all that there is."""

    def __repr__(self) -> str:
        # `head` carries the endpoint's credentials.
        return f"Target({self.endpoint.endpoint_id})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A token request by client credentials (RFC 6749, section 4.4), ready to be posted."""

    auth: Auth
    """What it was made from: endpoints with the same share a token."""
    to: Target
    body: bytes
