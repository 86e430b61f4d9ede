"""Bound the memory that the leases in flight take in one worker. Runs in the executors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from delivery.webhooks.retries import retry_messages

MAX_IN_FLIGHT_BYTES = 64 * 1024 * 1024
"""Most bytes of leases in flight in one worker. A lease beyond this bound waits until other leases end. If no lease ends in
time, the entries of the waiting lease are requeued without an attempt."""
ENTRY_BYTES = 2048
"""Bytes of memory that an entry takes besides its events and its attempt history."""


class MemoryBudget:
    """Count the bytes of one worker's leases in flight, up to `max_bytes`. A lease of any size fits if it is the only one."""

    def __init__(self, *, max_bytes: int = MAX_IN_FLIGHT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._used = 0
        self._is_exhausted = False

    def has_room(self, lease: retry_messages.Lease) -> bool:
        """Return True if the lease fits."""
        return not self._used or self._used + _weight(lease) <= self._max_bytes

    async def wait_for_room(self, lease: retry_messages.Lease, wait_for_any: Callable[[], Awaitable[bool]]) -> bool:
        """Wait until other leases have ended and `lease` fits; return True. Return False if no lease ends in time.

        `wait_for_any` waits for the end of any lease in flight, and returns False if none has ended in time. After a False,
        each lease that does not fit gets False at once, without a wait, until `finish_task` is called.
        """
        while not self.has_room(lease):
            if self._is_exhausted:
                return False
            self._is_exhausted = not await wait_for_any()
        return True

    def finish_task(self) -> None:
        """Let leases of the next task wait for memory again, after `wait_for_room` has returned False in this task."""
        self._is_exhausted = False

    def reserve(self, lease: retry_messages.Lease) -> int:
        """Count the bytes of a lease that begins; return their number, for `release`."""
        weight = _weight(lease)
        self._used += weight
        return weight

    def release(self, weight: int) -> None:
        """Release the bytes of a lease that has ended."""
        self._used -= weight


def _weight(lease: retry_messages.Lease) -> int:
    return sum(entry.written_bytes + ENTRY_BYTES for entry in lease.entries)
