"""List the examples of all operations."""

from __future__ import annotations

from collections.abc import Mapping

from subscriptions_db.api.examples import dead_letters, deliveries, endpoints, registry, subscriptions
from subscriptions_db.api.examples.example import Example

EXAMPLES: Mapping[str, Example] = {
    **registry.EXAMPLES,
    **endpoints.EXAMPLES,
    **subscriptions.EXAMPLES,
    **dead_letters.EXAMPLES,
    **deliveries.EXAMPLES,
}
"""The name of an operation → its example. Every operation has one."""
