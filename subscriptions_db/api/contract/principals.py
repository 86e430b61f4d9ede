"""Define the principal of a request (API key, token, or receiver that permits deliveries at a callback), and scopes of keys.

Runs in the API and in `fanout` commands.
"""

from __future__ import annotations

import datetime as dt
import enum
from typing import NamedTuple

from delivery.registry_model import EndpointId, TenantId


class Scope(enum.StrEnum):
    """The rights of a key or token."""

    OPERATOR = "operator"
    """Read and change everything of every customer, and publish events."""
    CUSTOMER_ADMIN = "customer_admin"
    """Read everything of its customer. Change its endpoints, subscriptions, dead letters, consumers and replays."""
    REGISTRAR = "registrar"
    """Read and change the endpoints and subscriptions of its customer. Read the customer itself and the event catalogue."""
    READ_ONLY = "read_only"
    """Read everything of its customer."""
    WRITE_ONLY = "write_only"
    """Change the endpoints, subscriptions, dead letters, consumers and replays of its customer. Read nothing: no secrets,
    events, results of deliveries or registered rows. So the key may neither rotate secrets nor lease dead letters: the answers
    would show secrets and events."""
    POLLER = "poller"
    """Read the dead letters and consumers of its customer. Lease, ack, extend and nack dead letters. Nothing else."""
    EXECUTOR = "executor"
    """Read the registry of every customer and its later changes, with sealed secrets, and nothing else."""
    PUBLISHER = "publisher"
    """Publish events of all tenants, or of those that the key names, and nothing else."""

    @property
    def is_of_no_customer(self) -> bool:
        """Return True if keys of this scope belong to the platform."""
        return self in {Scope.OPERATOR, Scope.EXECUTOR, Scope.PUBLISHER}


class Principal(NamedTuple):
    """The API key or token of a request, or the receiver that calls back to permit deliveries, as authorization needs it."""

    key_id: str
    """The id of the key; for a token, `oidc:` and its subject; for a receiver, `callback`."""
    customer_id: str | None
    """None: a key or token of the platform."""
    scope: Scope
    tenants: frozenset[TenantId] | None = None
    """Tenants for which a publisher's key may publish. None: for every tenant."""
    endpoints: frozenset[EndpointId] | None = None
    """Endpoints to which a customer's key is limited. None: the key is not limited."""
    expires_at: dt.datetime | None = None
    """When the API key expires. None: it does not expire, or the principal has no API key."""

    @property
    def endpoint_ids(self) -> str:
        """Return the endpoints of a limited key, separated by commas; empty for a key without a limit.

        Row-level security reads the text from the setting `fanout.endpoint_ids` of the transaction.
        """
        return "" if self.endpoints is None else ",".join(sorted(self.endpoints))
