"""Define how many bytes one decision of a shard of the retry lane may lease to workers and read.

Runs in the executors. A shard is one key of Spark's state: the retry entries of a part of all endpoints.
"""

from __future__ import annotations

from dataclasses import dataclass

from delivery.webhooks.retries import fifo, resends, timer_wheel
from delivery.webhooks.state import segment_store


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasingBounds:
    """The bounds of one decision. They limit the memory and the time that one decision takes."""

    max_leased_bytes: int = 64 * 1024 * 1024
    """Maximum of bytes of entries (RetryEntry.written_bytes) that one decision leases or gives up as expired. The last lease
    may exceed this bound. The leases of a decision are in memory together. Entries beyond the bound stay due, and the next
    decision comes at once."""
    max_lease_bytes: int = fifo.MAX_LEASE_BYTES
    """Maximum of bytes of one lease of a FIFO. A single larger entry is leased alone."""
    max_due_bytes: int = timer_wheel.MAX_DUE_BYTES
    """Maximum of bytes that one decision takes out of the timer wheel's buckets."""
    max_searched_bytes: int = resends.MAX_SEARCHED_BYTES
    """Maximum of bytes of waiting entries that one decision reads to find resent deliveries."""
    store: segment_store.StoreBounds = segment_store.BOUNDS


BOUNDS = LeasingBounds()
"""The bounds of the retry lane."""
