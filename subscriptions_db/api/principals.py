"""Who asks, and what its key allows.

Runs in the API and in the command. Imports the standard library only.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class Scope(enum.StrEnum):
    """What a key may do."""

    OPERATOR = "operator"
    """Everything, of every customer."""
    CUSTOMER_ADMIN = "customer_admin"
    """Everything that is its customer's."""
    READ_ONLY = "read_only"
    """See what is its customer's, and change nothing."""
    POLLER = "poller"
    """Take its customer's dead letters, and nothing else."""


class Principal(NamedTuple):
    """Who asks."""

    key_id: str
    customer_id: str | None
    """None: the operator."""
    scope: Scope
