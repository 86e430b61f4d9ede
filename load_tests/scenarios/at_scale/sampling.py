"""Sample the running platform at intervals: CPU, memory, open files, threads, lag and deliveries."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import psutil

from load_tests.harness import platform, usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The state of the platform at one moment."""

    at_s: float
    """Seconds since the sampler was made."""
    published: int
    """Events that were published so far."""
    delivered: int
    """Events that the receiver has accepted so far, each counted once."""
    cpu_s: Mapping[str, float]
    """CPU seconds by process: `jvm`, `driver`, `worker` (all workers), `kafka`, `publisher` (the scenario's process)."""
    lag: Mapping[str, float] = field(default_factory=dict)
    """By lane: records that no committed micro-batch has handled. Empty if the job did not answer."""
    revision: float = 0.0
    """Revision of the registry by which the job routes. If the job did not answer, the revision of the previous sample."""
    memory_mb: Mapping[str, float] = field(default_factory=dict)
    """Resident size in MB by process."""
    files: Mapping[str, int] = field(default_factory=dict)
    """Open file descriptors by process."""
    threads: Mapping[str, int] = field(default_factory=dict)
    """Threads by process."""

    @property
    def undelivered(self) -> int:
        """Return the number of published events that the receiver has not accepted."""
        return self.published - self.delivered

    def document(self) -> dict[str, Any]:
        """Return the sample as JSON values, with `undelivered` and without `revision`."""
        return {
            "at_s": round(self.at_s, 2),
            "published": self.published,
            "delivered": self.delivered,
            "undelivered": self.undelivered,
            "lag": {lane: round(records) for lane, records in self.lag.items()},
            "cpu_s": {role: round(seconds, 2) for role, seconds in self.cpu_s.items()},
            "memory_mb": {role: round(size) for role, size in self.memory_mb.items()},
            "files": dict(self.files),
            "threads": dict(self.threads),
        }


class Sampler:
    """A context in which a thread takes a sample every `every_s` seconds. The caller may take more samples in between."""

    def __init__(
        self, job: platform.Job, kafka_pid: int, published: Callable[[], int], delivered: Callable[[], int], every_s: float
    ) -> None:
        self.samples: list[Sample] = []
        self._job = job
        self._kafka = usage.Meter(kafka_pid)
        self._published = published
        self._delivered = delivered
        self._every_s = every_s
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._thread.join()

    def now_s(self) -> float:
        """Return the seconds since the sampler was made."""
        return time.monotonic() - self._began

    def take(self) -> Sample:
        """Take a sample now, keep it and return it."""
        with self._lock:
            sample = self._sample()
            self.samples.append(sample)
            return sample

    def _run(self) -> None:
        while not self._enough.wait(self._every_s):
            with contextlib.suppress(psutil.Error):  # the job has ended: the scenario sees that by itself
                self.take()

    def _sample(self) -> Sample:
        lag: dict[str, float] = {}
        revision = self.samples[-1].revision if self.samples else 0.0
        with contextlib.suppress(OSError):  # the job is too busy to answer: the sample has no lag then
            lag = self._job.metric_by("fanout_lag_records", "lane")
            revision = self._job.metric("fanout_registry_revision")
        used, kafka = self._job.meter.read(), self._kafka.read()
        memory_mb: dict[str, float] = {}
        files: dict[str, int] = {}
        threads: dict[str, int] = {}
        for process, role in self._job.meter.processes():
            with contextlib.suppress(psutil.Error), process.oneshot():
                memory_mb[role] = memory_mb.get(role, 0.0) + process.memory_info().rss / usage.MB
                files[role] = files.get(role, 0) + process.num_fds()
                threads[role] = threads.get(role, 0) + process.num_threads()
        return Sample(
            at_s=self.now_s(),
            published=self._published(),
            delivered=self._delivered(),
            cpu_s={
                "jvm": used.jvm_s,
                "driver": used.driver_s,
                "worker": used.workers_s,
                "kafka": kafka.jvm_s + kafka.python_s,
                "publisher": time.process_time(),
            },
            lag=lag,
            revision=revision,
            memory_mb=memory_mb,
            files=files,
            threads=threads,
        )
