"""Tell a network of ours that is broken from endpoints that are: when hardly any can be reached, the fault is ours.

Runs on the driver and in the executors. Must not import pyspark or psycopg. Pure: `now` comes in. While the fault is ours the
lanes hold: events stay in Kafka instead of using up their schedules, and nobody is disabled (`is_broken`).
"""

from __future__ import annotations

from dataclasses import dataclass

from delivery import errors

MIN_ASKED = 10
"""Of fewer endpoints, all may be dead by themselves."""
SHARE = 0.8
"""Of the endpoints that were asked. Half of them may be in one data centre that is away."""
FIRST_HOLD_S, MAX_HOLD_S = 5.0, 60.0
NO_WAY_THERE = frozenset(
    {
        errors.LocalFailure.error_class,
        errors.DnsFailed.error_class,
        errors.ConnectFailed.error_class,
        errors.TlsFailed.error_class,
        errors.AttemptTimedOut.error_class,
        errors.ConnectionLost.error_class,
    }
)
"""Nothing came from the endpoint. When that is so for most of them, the fault is ours."""


def is_ours(asked: int, unreachable: int) -> bool:
    """Judge by how many endpoints were asked, and to how many there was no way at all."""
    return asked >= MIN_ASKED and unreachable >= SHARE * asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Egress:
    """What is thought of our own network."""

    is_broken: bool = False
    held_s: float = 0.0
    """How long the last hold was."""
    until: float = float("-inf")
    """When the next micro-batch may begin, to see whether it is mended."""

    def told(self, asked: int, unreachable: int, now: float) -> Egress:
        """Return what is thought after a micro-batch.

        1. Hardly any could be reached: it is broken, and the hold doubles.
        2. Most of those asked were reached: it works, however few they were.
        3. Otherwise that says nothing new.
        """
        if is_ours(asked, unreachable):
            held_s = min(self.held_s * 2, MAX_HOLD_S) if self.is_broken else FIRST_HOLD_S
            return Egress(is_broken=True, held_s=held_s, until=now + held_s)
        if unreachable * 2 < asked:
            return Egress()
        return self
