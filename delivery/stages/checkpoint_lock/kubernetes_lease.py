"""Hold the Lease of a checkpoint: acquire it, renew it on a thread of its own, and end the process before the Lease expires.

Runs on the driver, and in commands that change the checkpoint, which hold the Lease like a driver. A Lease is a record at the
API server of Kubernetes. Only the driver that the Lease names may use the checkpoint. Guarantee: a driver that cannot renew the
Lease ends itself and its JVM RENEW_DEADLINE_S after its last successful renewal, or up to 1.5 s later (WATCH_S and
LAST_WORDS_S). Another driver acquires the Lease only after it has seen no renewal for LEASE_S. Not promised: a process may be
stopped for longer than RENEW_DEADLINE_S, by SIGSTOP or with its machine. Such a process ends only when it runs again, and may
first do some milliseconds of work (docs/operations.md).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Protocol

from delivery import errors
from delivery.stages.checkpoint_lock import cluster, election

log = logging.getLogger(__name__)

WATCH_S = 0.5
"""Seconds between two checks of RENEW_DEADLINE_S. The checks have a thread of their own, because a renewal request may hang."""
LAST_WORDS_S = 1.0
"""Seconds for writing the last log line. A reader of the log that has stopped reading must not keep the process alive."""


class LeaseClient(Protocol):
    """A client for one Lease at the API server. `read` and `write` may raise the errors of `cluster.KubernetesLease`."""

    @property
    def name(self) -> str:
        """The name of the Lease."""

    def read(self) -> election.LeaseRecord | None:
        """Return the Lease; None if it does not exist."""

    def write(self, record: election.LeaseRecord) -> election.LeaseRecord:
        """Store the record, and return the record as stored. Raise Conflict if the Lease is not at the version in `record`."""


class Holder:
    """Acquire, renew and release the Lease for this driver, which is named `identity`.

    If this driver loses the Lease, the Holder calls `kill_jvm` and ends this process. `kill_jvm` kills the JVM at once. Workers
    whose JVM is gone begin no request, and end by themselves. `retry_s` has the meaning of `election.RETRY_S`.
    """

    def __init__(
        self, leases: LeaseClient, identity: str, kill_jvm: Callable[[], None], *, retry_s: float = election.RETRY_S
    ) -> None:
        self._retry_s = retry_s
        self._leases, self._identity, self._kill_jvm = leases, identity, kill_jvm
        self._observed = election.Observed(record=None, since=time.monotonic())
        self._renewed_at: float | None = None
        self._problem = ""
        self._waits_for = f"the Lease {leases.name} has not been requested yet"
        self._released = threading.Event()
        self._ending = threading.Lock()
        self._renewing = threading.Thread(target=self._renew, name="lease", daemon=True)

    @property
    def pause_reason(self) -> str | None:
        """A text that says why this driver does not deliver yet. None: this driver has acquired the Lease."""
        return None if self._renewed_at is not None else self._waits_for

    def acquire(self, stop: threading.Event, *, is_patient: bool = True) -> bool:
        """Wait until this driver holds the Lease, and start to renew it; return False if `stop` is set first.

        Raise LeaseRefused if the API server does not let this driver use the Lease. Unless `is_patient`, raise CheckpointInUse
        as soon as another driver is seen to renew the Lease.
        """
        seen = None
        while not stop.is_set():
            if self._has_acquired():
                log.info("acquired the Lease %s as %s", self._leases.name, self._identity)
                self._renewing.start()
                threading.Thread(target=self._watch, name="lease deadline", daemon=True).start()
                return True
            record = self._observed.record
            if not is_patient and record is not None and record.holder and seen not in {None, record.version}:
                raise errors.CheckpointInUse(
                    f"{record.holder}, a driver or a `fanout accept-loss`, holds the Lease {self._leases.name} and renews it. "
                    "Nothing was changed. Stop that driver, or wait until that command has ended"
                )
            seen = None if record is None else record.version
            stop.wait(self._retry_s)
        return False

    def release(self) -> None:
        """Stop renewing, and write that the Lease is free, so that the next driver need not wait until it expires.

        Called when this driver has stopped delivering, also if it never acquired the Lease. If this driver does not hold the
        Lease, write nothing. If the write fails, log a warning.
        """
        self._released.set()
        if self._renewed_at is None:
            return
        self._renewing.join()  # its last write changes the version of the Lease, which `released` needs
        record = self._observed.record
        try:
            if record is not None and record.holder == self._identity:
                self._leases.write(election.released(record))
        except cluster.Conflict:
            log.warning(
                "the Lease %s was not released, because it has changed since this process last read it. This process has ended "
                "its work. The next driver may have to wait until the Lease expires, up to %.0f s. There is nothing to do",
                self._leases.name, election.LEASE_S,
            )  # fmt: skip
        except (cluster.Unavailable, errors.LeaseRefused) as exc:
            log.warning(
                "the Lease %s could not be released (%s). This process has ended its work. The next driver waits until the "
                "Lease expires, up to %.0f s, and events wait in Kafka meanwhile. If the text in brackets names a right, grant "
                "it; otherwise there is nothing to do", self._leases.name, exc, election.LEASE_S,
            )  # fmt: skip

    def abandon(self) -> None:
        """Stop renewing, and let the Lease expire. Called when this driver has failed: its workers may still deliver."""
        self._released.set()

    def _has_acquired(self) -> bool:
        try:
            return self._try_to_acquire()
        except errors.LeaseRefused as exc:
            raise errors.LeaseRefused(f"{exc}. Nothing was started") from exc

    def _try_to_acquire(self) -> bool:
        try:
            self._observe()
            if election.decide(self._identity, self._observed, None, time.monotonic()) is election.ElectionStep.ACQUIRE:
                self._write()
                return True
        except cluster.Unavailable as exc:
            self._wait_for(f"waits for the Lease {self._leases.name}: {exc}")
        except cluster.Conflict:
            self._wait_for(f"waits for the Lease {self._leases.name}, which another driver has just acquired")
        else:
            holder = "" if self._observed.record is None else self._observed.record.holder
            self._wait_for(f"waits for the Lease {self._leases.name}, held by {holder}")
        return False

    def _wait_for(self, reason: str) -> None:
        if reason != self._waits_for:
            self._waits_for = reason
            log.warning(
                "this process %s. It delivers and changes nothing until it holds the Lease, and asks every %.0f s. If a holder "
                "is named that should not run, stop it. If the API server does not answer, check the pod's network",
                reason, self._retry_s,
            )  # fmt: skip

    def _observe(self) -> None:
        self._observed = self._observed.updated(self._leases.read(), time.monotonic())

    def _write(self) -> None:
        sent_at = time.monotonic()  # before the request: other drivers see the new record later than this
        record = self._leases.write(election.claimed(self._identity, self._observed, cluster.micro_time()))
        self._observed, self._renewed_at, self._problem = election.Observed(record=record, since=sent_at), sent_at, ""

    def _renew(self) -> None:
        while not self._released.wait(self._retry_s):
            try:
                self._renew_once()
            except (cluster.Unavailable, errors.LeaseRefused) as exc:
                self._note(str(exc))
            except cluster.Conflict:
                self._note("another driver or a person changed it: find out who, and stop it")

    def _note(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            log.warning(
                "the Lease %s could not be renewed (%s). This process retries every %.0f s, and ends itself after %.0f s "
                "without a renewal. If the text in brackets gives no advice, check the pod's network",
                self._leases.name, problem, self._retry_s, election.RENEW_DEADLINE_S,
            )  # fmt: skip

    def _renew_once(self) -> None:
        try:
            self._renew_or_fence()
        except cluster.Conflict:
            self._observe()
            self._renew_or_fence()

    def _renew_or_fence(self) -> None:
        if election.decide(self._identity, self._observed, self._renewed_at, time.monotonic()) is election.ElectionStep.LOST:
            self._fence()
        elif not self._released.is_set():
            self._write()

    def _watch(self) -> None:
        while not self._released.wait(WATCH_S):
            if self._renewed_at is not None and election.is_overdue(self._renewed_at, time.monotonic()):
                self._fence()

    def _fence(self) -> None:
        """Kill this process and its JVM now, after one log line. There is no time for a graceful stop."""
        with self._ending:  # never released: the process ends
            alarm = threading.Timer(LAST_WORDS_S, self._end)
            alarm.daemon = True
            alarm.start()
            log.critical(
                "%s. This process delivers nothing more and ends now, so that only the Lease's holder uses the checkpoint. "
                "Committed work is kept, and the next start continues from there", self._why(),
            )  # fmt: skip
            self._end()

    def _end(self) -> None:
        try:
            self._kill_jvm()
        finally:  # even if the kill failed: this process must not outlive its Lease
            os._exit(1)

    def _why(self) -> str:
        record = self._observed.record
        if record is not None and record.holder != self._identity:
            return (
                f"this driver lost the Lease {self._leases.name} to {record.holder or 'nobody'}: find out why this process "
                "stalled, or who changed the Lease"
            )
        cause = self._problem or "this process stalled"
        return (
            f"the Lease {self._leases.name} was not renewed for {election.RENEW_DEADLINE_S:.0f} s ({cause}): check that the "
            "pod reaches the API server and gets its share of CPU"
        )
