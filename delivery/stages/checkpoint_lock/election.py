"""Decide which driver holds the Lease of a checkpoint. Pure: the caller passes its observations and the time.

Runs on the driver, and in commands that change the checkpoint, which hold the Lease like a driver. A Lease is a record at the
API server of Kubernetes. Only the driver that the Lease names may use the checkpoint. The semantics are those of client-go's
leader election. Each driver measures, on its own monotonic clock, how long ago it saw the record change. The drivers' clocks
may differ by any amount, but must run at about the same speed.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

LEASE_S = 15.0
"""Seconds without a change of the record after which another driver may take the Lease: kube-controller-manager's value."""
RENEW_DEADLINE_S = 10.0
"""Seconds without a successful renewal after which the holder kills itself and its JVM. The 5 s up to LEASE_S are for three
delays. (1) The next check of the deadline comes within 0.5 s. (2) The last log line takes up to 1 s. (3) Workers of a killed
JVM begin no request, and end within 4 s. If each delay is at its maximum, a worker outlives LEASE_S by half a second, in which
it writes results (docs/adr/0039)."""
RETRY_S = 2.0
"""Seconds between two renewals, or two reads of another driver's Lease: four renewals are tried before the deadline."""


class ElectionStep(enum.Enum):
    """The next step of a driver that needs the Lease."""

    ACQUIRE = "acquire"
    """Write the record with this driver as the holder."""
    WAIT = "wait"
    """Another driver holds the Lease: read it again later."""
    RENEW = "renew"
    """Write the record again, so that other drivers see it change."""
    LOST = "lost"
    """This driver no longer holds the Lease, and must end at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """The content of a Lease, as the API server returned it or as a driver writes it."""

    holder: str
    """Identity of the driver that holds the Lease. Empty: the Lease was released."""
    duration_s: float
    """Seconds for which the holder claims the Lease after each renewal."""
    version: str
    """The `resourceVersion` of Kubernetes. Every write changes it, and a write that names an old version is refused. Empty: the
    Lease is to be created."""
    acquired: str = ""
    """When the holder acquired the Lease, by the holder's clock. For people who look at the Lease; no decision uses it."""
    transitions: int = 0
    """Number of changes of the holder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The Lease as this driver last saw it."""

    record: LeaseRecord | None
    """The Lease when it was last read; None: it does not exist."""
    since: float
    """When this driver first saw this version of the record; seconds of its own monotonic clock."""

    def updated(self, record: LeaseRecord | None, now: float) -> Observed:
        """Return the observation after one more read. An unchanged record keeps the time at which it was first seen."""
        is_same = record is not None and self.record is not None and record.version == self.record.version
        return self if is_same else Observed(record=record, since=now)


def decide(identity: str, observed: Observed, renewed_at: float | None, now: float) -> ElectionStep:
    """Return the next step of the driver `identity`, by the Lease as this driver last saw it.

    `now` and `renewed_at` are seconds of this driver's monotonic clock. `renewed_at` is when this driver sent its last
    successful write; None: this driver does not hold the Lease.

    1. This driver holds the Lease, and its last successful write is RENEW_DEADLINE_S old: LOST, even if no other driver has
       taken the Lease yet.
    2. This driver held the Lease, and the record names another holder or none: LOST.
    3. This driver holds the Lease: RENEW. If the Lease was deleted, the renewal creates it again.
    4. The Lease does not exist, nobody holds it, or its record names this driver (the answer to this driver's write was lost):
       ACQUIRE.
    5. The record has not changed for the `duration_s` that it names, by this driver's clock: ACQUIRE.
    6. Anything else: WAIT.
    """
    record = observed.record
    if renewed_at is not None:
        if is_overdue(renewed_at, now) or (record is not None and record.holder != identity):
            return ElectionStep.LOST
        return ElectionStep.RENEW
    if record is None or record.holder in {"", identity}:
        return ElectionStep.ACQUIRE
    return ElectionStep.ACQUIRE if now - observed.since >= record.duration_s else ElectionStep.WAIT


def is_overdue(renewed_at: float, now: float) -> bool:
    """Return True if a holder that sent its last successful write at `renewed_at` must stop delivering."""
    return now - renewed_at >= RENEW_DEADLINE_S


def claimed(identity: str, observed: Observed, at: str) -> LeaseRecord:
    """Return the record with which the driver `identity` acquires or renews the Lease.

    A renewal keeps the time of acquisition, and does not count as a transition. `at` is the present time, as
    `cluster.micro_time` returns it.
    """
    before = observed.record
    if before is not None and before.holder == identity:
        return LeaseRecord(
            holder=identity,
            duration_s=LEASE_S,
            version=before.version,
            acquired=before.acquired,
            transitions=before.transitions,
        )
    return LeaseRecord(
        holder=identity,
        duration_s=LEASE_S,
        version="" if before is None else before.version,
        acquired=at,
        transitions=0 if before is None else before.transitions + 1,
    )


def released(before: LeaseRecord) -> LeaseRecord:
    """Return the record with which the holder of `before` releases the Lease: the next driver may take the Lease at once."""
    return LeaseRecord(
        holder="", duration_s=1, version=before.version, acquired=before.acquired, transitions=before.transitions
    )
