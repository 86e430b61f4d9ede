"""Remember which endpoints the retry lane holds back, for the lanes that would ask them again and again.

Runs on the driver, shared by the lanes of one application. Where the retry lane runs as an application of its own, nothing is
known here, and each worker finds out by itself (delivery.webhooks.circuit).
"""

from __future__ import annotations

from delivery.model import EndpointId


class Held:
    """The endpoints whose events go to the retry lane at once. Safe between threads: the set is replaced, never changed."""

    def __init__(self) -> None:
        self.endpoints: frozenset[EndpointId] = frozenset()

    def told(self, endpoints: frozenset[EndpointId]) -> None:
        """Take what the retry lane tells after a micro-batch, which is all of them."""
        self.endpoints = endpoints
