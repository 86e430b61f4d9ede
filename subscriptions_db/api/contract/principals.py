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
    EXECUTOR = "executor"
    """Follow the registry, of every customer and with sealed secrets, and nothing else."""

    @property
    def is_of_no_customer(self) -> bool:
        """Tell whether keys of this scope are the platform's own."""
        return self in {Scope.OPERATOR, Scope.EXECUTOR}


class Principal(NamedTuple):
    """Who asks."""

    key_id: str
    customer_id: str | None
    """None: the platform's own."""
    scope: Scope
