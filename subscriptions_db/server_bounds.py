"""State the bounds of one process of the API that are not settings. Pure.

Runs in the API. Tests may run the API with other bounds.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerBounds:
    """Times, rates and numbers of one process that operators do not set."""

    connection_wait_s: float = 2.0
    """Seconds a request waits for a connection to Postgres before its answer is 503. While Postgres is away, every request that
    needs Postgres waits this long."""
    sending_s: float = 60.0
    """Seconds to send an answer; then the connection is aborted. aiohttp would wait for ever for a client that does not read. A
    page has 1 MiB, but a single dead letter may be larger."""
    key_cache_s: float = 3.0
    """Seconds for which a process caches the rights of an API key. A revoked key works for at most this time. docs/api.md
    promises 5 s."""
    poll_every_s: float = 1.0
    """Seconds between two tries of a long poll. Notifications of Postgres would not help: an expired lease causes none."""
    provider_read_every_s: float = 10.0
    """Least seconds between the starts of two reads of the OpenID Connect provider's signing keys. Tokens with invented key
    ids must not make the API flood the provider."""
    test_events_per_s: float = 1.0
    """Maximum test events and permission requests a second to one endpoint. With more, a customer could attack a server from
    our addresses."""
    test_events_at_once: int = 16
    """Maximum test events and permission requests in flight, to all endpoints together. Half of them may go to the endpoints of
    one customer."""


DEFAULT = ServerBounds()
"""The bounds of `fanout serve`."""
