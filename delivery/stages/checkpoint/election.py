"""Decide which driver holds the Lease of a checkpoint. Pure: values and `now` in, a decision out.

Runs on the driver. The semantics are those of client-go's leader election. No clock of another machine is compared: each
driver measures, on its own monotonic clock, how long ago it saw the record change. Two clocks may differ by any amount; they
must only run at about the same speed.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

LEASE_S = 15.0
"""Seconds without a change of the record after which another driver may take the Lease: kube-controller-manager's value."""
RENEW_DEADLINE_S = 10.0
"""Seconds without a successful renewal after which the holder fences itself. The 5 s up to LEASE_S cover two delays. Workers of
a killed JVM send for up to 2 s more (docs/adr/0022), and two clocks do not run at exactly the same speed."""
RETRY_S = 2.0
"""Seconds between two renewals, or two reads of another driver's Lease: five renewals may fail before the deadline."""


class Decision(enum.Enum):
    """The next step of a driver."""

    ACQUIRE = "acquire"
    WAIT = "wait"
    RENEW = "renew"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A Lease as the API server returned it."""

    holder: str
    """Identity of the driver that holds the Lease. Empty: the Lease was released."""
    duration_s: float
    """Seconds for which the holder claims the Lease after each renewal."""
    version: str
    """The `resourceVersion`: every write changes it, and a write that names an old one is refused."""
    acquired: str = ""
    """When the holder acquired the Lease, by its own clock. Shown to people only."""
    transitions: int = 0
    """Number of changes of the holder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The Lease as this driver last saw it."""

    record: Record | None
    """None: there is no such Lease."""
    since: float
    """This driver's monotonic clock when it first saw this version of the record."""

    def updated(self, record: Record | None, now: float) -> Observed:
        """Return the observation after one more read. An unchanged record keeps the time at which it was first seen."""
        is_same = record is not None and self.record is not None and record.version == self.record.version
        return self if is_same else Observed(record=record, since=now)


def decide(identity: str, observed: Observed, renewed_at: float | None, now: float) -> Decision:
    """Return what the driver `identity` does. `renewed_at` is when it sent its last successful write; None: it holds nothing.

    1. It holds the Lease, and the deadline is over: LOST, even where nobody took the Lease yet.
    2. It held the Lease, and the record names another holder: LOST.
    3. It holds the Lease: RENEW, and where somebody deleted the Lease, create it again.
    4. There is no Lease, nobody holds it, or the record names this driver (the answer to its write was lost): ACQUIRE.
    5. The holder has not renewed for as long as it claimed: ACQUIRE.
    6. Anything else: WAIT.
    """
    record = observed.record
    if renewed_at is not None:
        if is_overdue(renewed_at, now) or (record is not None and record.holder != identity):
            return Decision.LOST
        return Decision.RENEW
    if record is None or record.holder in {"", identity}:
        return Decision.ACQUIRE
    return Decision.ACQUIRE if now - observed.since >= record.duration_s else Decision.WAIT


def is_overdue(renewed_at: float, now: float) -> bool:
    """Return True if a holder that sent its last successful write at `renewed_at` must stop delivering."""
    return now - renewed_at >= RENEW_DEADLINE_S


def claimed(identity: str, observed: Observed, at: str) -> Record:
    """Return the record that acquires or renews the Lease for `identity`. `at` is the time of day, for people."""
    before = observed.record
    if before is not None and before.holder == identity:
        return Record(
            holder=identity,
            duration_s=LEASE_S,
            version=before.version,
            acquired=before.acquired,
            transitions=before.transitions,
        )
    return Record(
        holder=identity,
        duration_s=LEASE_S,
        version="" if before is None else before.version,
        acquired=at,
        transitions=0 if before is None else before.transitions + 1,
    )


def released(before: Record) -> Record:
    """Return the record that releases the Lease to the next driver at once."""
    return Record(holder="", duration_s=1, version=before.version, acquired=before.acquired, transitions=before.transitions)
