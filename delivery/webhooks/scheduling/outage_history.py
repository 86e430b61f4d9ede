"""Remember when our own network was broken, so that no failure of such a time disables an endpoint.

Runs on the driver. Must not import pyspark or psycopg. Pure: times come in, in ms since the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

MARGIN_MS = 10_000
"""After an outage, in ms. An attempt that began in it ends later, and clocks of workers differ from the driver's by seconds."""
MAX_PAST = 100
"""Outages that are remembered, the latest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outages:
    """The outages of our own network since this process began.

    An outage begins when the network was last known to work: what failed before it was noticed counts as little.
    """

    past: tuple[tuple[int, int], ...] = ()
    """First and last moment of each that is over, in order."""
    well_ms: int = 0
    """When the network was last known to work; 0: not yet."""
    is_on: bool = False

    def told(self, *, is_broken: bool, is_well: bool, now_ms: int) -> Outages:
        """Return what is known after a micro-batch: is the network thought to be broken, and did it show to work?"""
        if is_broken:
            return replace(self, is_on=True)
        if self.is_on:
            past = (*self.past, (self.well_ms, now_ms + MARGIN_MS))
            return Outages(past=past[-MAX_PAST:], well_ms=now_ms)
        return replace(self, well_ms=now_ms) if is_well else self

    def failing_s(self, since_ms: int, failed_ms: int) -> float:
        """Return the seconds in which an endpoint has failed by itself, first at `since_ms` and last at `failed_ms`.

        1. The last failure is of an outage: 0. It says nothing, and an endpoint that is well answers the next probe.
        2. Otherwise the time between both, less that of all outages.
        """
        if self.is_on or any(first <= failed_ms <= last for first, last in self.past):
            return 0.0
        ours_ms = sum(max(0, min(last, failed_ms) - max(first, since_ms)) for first, last in self.past)
        return (failed_ms - since_ms - ours_ms) / 1000
