"""Scale the number of executors while the lanes run, on a thread of its own.

Runs on the driver. At each interval one call of `Controller.step` observes and decides. If it fails, the failure is logged, and
the next call tries again. Meanwhile the lanes continue with the present executors.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from pyspark import SparkContext

from delivery import errors
from delivery.config import settings
from delivery.observability import health, metrics
from delivery.stages.scaling import decision, executors, load, size

log = logging.getLogger(__name__)

STEADY_S = 5.0
"""Seconds without a change of the registered executors, after which the lanes plan for their number. If all wanted executors
have registered, the lanes plan for that number at once. The pods of one request start one by one, and each new plan costs a
lane a moment."""
REMOVE_WITHIN_S = 10.0
"""Seconds to wait for a moment in which no lane needs shuffled rows. Meanwhile no micro-batch of the batch or retry lane starts
its deliveries."""
MISSING_AFTER_S = 120.0
"""Seconds after which a warning reports that requested executors have not registered."""


class Cluster(Protocol):
    """The executors of this Spark application. `executors.SparkExecutors` implements it."""

    def now(self) -> executors.Executors:
        """Return the registered executors."""

    def request(self, number: int) -> None:
        """Request this total number of executors from the cluster manager. A lower number ends no registered executor."""

    def decommission(self, names: tuple[str, ...]) -> None:
        """Let these executors end as soon as their running tasks have ended.

        They are replaced unless an earlier `request` has asked for fewer executors.
        """


class Controller:
    """Observe the load of the lanes, decide the number of executors, and request that number from Spark.

    `watches` has for each lane the watch that holds the lane's lag. `clock` is monotonic, in seconds.
    """

    def __init__(
        self,
        policy: decision.Policy,
        cluster: Cluster,
        watches: Mapping[str, health.Watch],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._policy, self._cluster, self._watches, self._clock = policy, cluster, watches, clock
        self._state = decision.ScalingState(wanted=policy.min_executors)
        self._asked: int | None = None
        self._shuffles = size.Shuffles()
        self._planned = policy.min_executors
        self._registered = 0
        self._living = 0
        self._changed_at_s = self._complete_at_s = clock()
        self._is_missing_logged = False

    def sizing(self) -> size.Sizing:
        """Return the functions that give the lanes the number of executors, tasks and workers."""
        return size.Sizing(now=self._size, workers=self._workers, shuffles=self._shuffles)

    def _size(self) -> size.Size:
        return size.Size(executors=self._planned, tasks=self._planned * self._policy.cores)

    def _workers(self) -> int:
        """Return the largest number of workers that may run until the next `step`, on requested or on living executors."""
        return max(self._state.wanted, self._living, 1) * self._policy.cores

    def step(self) -> None:
        """Observe the executors and the lanes, decide the number, and request or remove executors. Called at each interval."""
        now_s, found = self._clock(), self._cluster.now()
        self._observe(found, now_s)
        before = self._state.wanted
        seen = {name: _load(watch) for name, watch in self._watches.items()}
        decided = decision.decide(self._state, seen, self._policy, executors=len(found.active), now_s=now_s)
        self._state = decided.state
        self._report(decided, before, len(found.active))
        if self._asked != decided.wanted:
            self._cluster.request(decided.wanted)
            self._asked = decided.wanted
        if len(found.active) > decided.wanted:
            self._remove(found.active[decided.wanted :])
        self._warn_of_missing(now_s)

    def _observe(self, found: executors.Executors, now_s: float) -> None:
        if len(found.active) != self._registered:
            self._registered, self._changed_at_s = len(found.active), now_s
        self._living = len(found.active) + len(found.ending)
        if self._registered >= self._state.wanted:
            self._complete_at_s, self._is_missing_logged = now_s, False
        if self._registered and (self._registered == self._state.wanted or now_s - self._changed_at_s >= STEADY_S):
            self._planned = self._policy.bounded(self._registered)

    def _remove(self, names: tuple[str, ...]) -> None:
        """Decommission these executors at a moment without shuffled rows in use, within REMOVE_WITHIN_S seconds.

        If there is no such moment, remove none: the next `step` tries again.

        The caller names the newest executors, because the oldest have the state of most shards.
        """
        if not self._shuffles.between(lambda: self._cluster.decommission(names), REMOVE_WITHIN_S):
            log.info(
                "no executor was removed: for %.0f s a lane with state always had a micro-batch in flight. A retry follows",
                REMOVE_WITHIN_S,
            )

    def _report(self, decided: decision.ScalingDecision, before: int, registered: int) -> None:
        metrics.EXECUTORS.set(registered)
        metrics.EXECUTORS_WANTED.set(decided.wanted)
        for reason in decision.Reason:
            metrics.SCALING_REASON.labels(reason.value).set(reason is decided.reason)
        for name, known in decided.state.lanes.items():
            metrics.ARRIVAL.labels(name).set(known.arrival_per_s)
            metrics.THROUGHPUT_OF_EXECUTOR.labels(name).set(known.per_executor or 0.0)
        metrics.DRAIN_SECONDS.set(decided.drain_s)
        if decided.wanted == before:
            return
        known = decided.state.lanes[decided.lane]
        log.info(
            "executors wanted: %d in place of %d, because %s: lane %s has a lag of %d records, %.0f records/s come, and an "
            "executor handles %s",
            decided.wanted, before, WHY[decided.reason].format(policy=self._policy), decided.lane, known.lag or 0,
            known.arrival_per_s, "an unknown number" if known.per_executor is None else f"{known.per_executor:.0f}/s",
            extra={"reason": decided.reason.value, "wanted": decided.wanted, "registered": registered, "lane": decided.lane},
        )  # fmt: skip

    def _warn_of_missing(self, now_s: float) -> None:
        if self._is_missing_logged or now_s - self._complete_at_s < MISSING_AFTER_S or self._registered >= self._state.wanted:
            return
        self._is_missing_logged = True
        log.warning(
            "executors are missing: %d of %d are registered, and have been too few for %.0f s. %s. Check the cluster manager: "
            "quota, nodes, image",
            self._registered, self._state.wanted, now_s - self._complete_at_s,
            "The lanes continue with these" if self._registered else "Until one registers, all events wait in Kafka",
        )  # fmt: skip


WHY = {
    decision.Reason.LAG: "the lag would not drain within {policy.drain_within_s:.0f} s",
    decision.Reason.IDLE: "fewer would have sufficed for {policy.scale_in_after_s:.0f} s",
}
"""The part of the log message that follows "because", for each reason that changes the number of executors."""


def _load(watch: health.Watch) -> load.Load:
    facts, backlog = watch.facts(), watch.backlog
    return load.Load(
        at_s=backlog.at_s,
        lag=backlog.lag if facts.phase is health.QueryPhase.RUNNING else None,
        handled=backlog.handled,
        handled_at_s=backlog.handled_at_s,
        partitions=backlog.partitions,
        has_no_topics=backlog.has_no_topics,
        pause_reason=facts.pause_reason,
        is_source_up=facts.is_source_up,
    )


def policy_of(config: settings.Settings) -> decision.Policy | None:
    """Return the policy of scaling by the settings; None: the number of executors is fixed.

    Raise SettingsError if the settings contradict each other, or if Spark's master has no executors to scale. Also raise it if
    `spark.conf` does not say how many tasks an executor runs at once.
    """
    area = config.scaling
    if not area.is_on:
        return None
    if area.min_executors > area.max_executors:
        raise errors.SettingsError(
            f"setting scaling.min_executors is {area.min_executors}, and scaling.max_executors is {area.max_executors}: "
            "the minimum must not be above the maximum. The job did not start: change one of them"
        )
    return decision.Policy(
        min_executors=area.min_executors,
        max_executors=area.max_executors,
        cores=executors.cores(config.spark),
        drain_within_s=area.drain_within_s,
        scale_in_after_s=area.scale_in_after_s,
    )


@contextlib.contextmanager
def running(
    policy: decision.Policy | None,
    context: SparkContext,
    watches: Mapping[str, health.Watch],
    config: settings.Settings,
    stop: threading.Event,
) -> Iterator[size.Sizing]:
    """As a context manager: scale on a thread until `stop` is set or the `with` block ends.

    Without a policy the number of executors is fixed. `context` is Spark's. Yield the functions that give the lanes the number
    of executors, tasks and workers.
    """
    if policy is None:
        yield size.fixed(config.spark.parallelism)
        return
    controller, ended = Controller(policy, executors.SparkExecutors(context), watches), threading.Event()

    def run() -> None:
        while not stop.is_set() and not ended.wait(config.scaling.interval_s):
            try:
                controller.step()
            except Exception:
                log.exception(
                    "the number of executors could not be decided or changed. The lanes continue with the present executors, "
                    "and a retry follows in %.0f s. If this is logged again, send the traceback to the maintainers of the "
                    "platform",
                    config.scaling.interval_s,
                )  # fmt: skip

    thread = threading.Thread(target=run, name="scaling", daemon=True)
    thread.start()
    try:
        yield controller.sizing()
    finally:
        ended.set()
        thread.join()
