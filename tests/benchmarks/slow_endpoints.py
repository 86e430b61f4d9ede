"""Simulate how much longer the other endpoints wait when 5 % of all endpoints take 1 to 10 s to respond.

Run: `python -m tests.benchmarks.slow_endpoints`. The dispatcher, the response times and the background attempts are the real
ones; time, endpoints and Spark are simulated, so the figures are the same on every machine. Micro-batches of two tasks follow
one another, and each task runs in one of six workers. A micro-batch costs Spark BASE_S, and no work of ours costs time.
The driver's list of unhealthy endpoints is real, too. Latency is from the arrival of an event to the begin of its request.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
import json
import random
import sys
from typing import Any

from delivery.model import Attempt, Delivery, OutcomeKind
from delivery.registry_model import Endpoint
from delivery.stages.lanes import unhealthy_endpoints
from delivery.webhooks.dispatching.endpoint_queue import DispatchReport
from delivery.webhooks.scheduling import background_attempts, unhealthy
from load_tests.harness.behaviour import Behaviour
from tests.support import builders, fakes
from tests.support.dispatching import dispatcher_of, new_memory

ENDPOINTS, PER_S, WORKERS = 7_000, 420, 6
"""The direct part of the load test `slow_endpoints`: seven of ten endpoints and events."""
BASE_S, ATTEMPT_S = 0.07, 15.0
PHASES = {"healthy": 60.0, "slow": 120.0}
"""Seconds of each phase."""
BEHAVIOUR = Behaviour(slow_of_100=5)


class Endpoints:
    """Endpoints that respond after some 7 ms. While `is_disturbed`, slow ones take their own time of 1 to 10 s."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.is_disturbed = False

    async def attempt(self, delivery: Delivery, number: int) -> Attempt:
        """Respond with status 200."""
        answer = BEHAVIOUR.answer(number_of(delivery)) if self.is_disturbed else None
        wait_s = answer.after_s if answer is not None and answer.after_s else self._rng.lognormvariate(-5, 0.6)
        await asyncio.sleep(wait_s)
        return Attempt(number, 0, wait_s * 1000, 200, None)


class Worker:
    """The state of endpoints that a worker keeps between tasks."""

    def __init__(self, endpoints: Endpoints, clock: fakes.PassingClock) -> None:
        self._endpoints, self._clock = endpoints, clock
        self._memory = new_memory(clock)
        self._background = background_attempts.BackgroundAttempts(ATTEMPT_S, 256, lambda _: None)

    async def deliver(self, due: list[Delivery], known: unhealthy.Unhealthy) -> tuple[list[Delivery], DispatchReport]:
        """Return the deliveries that a task has made, and its report."""
        dispatcher = dispatcher_of(
            self._endpoints, self._clock, late=known.late, memory=self._memory, background=self._background
        )
        for delivery in due:
            dispatcher.submit(delivery)
        await dispatcher.finish()
        made = [outcome.delivery for outcome in dispatcher.drain() if outcome.kind is OutcomeKind.DELIVERED]
        return made, dispatcher.report()


def number_of(delivery: Delivery) -> int:
    """Return the number of a delivery's endpoint."""
    return int(delivery.endpoint.endpoint_id.removeprefix("ep"))


def _endpoint(number: int) -> Endpoint:
    return builders.endpoint(f"ep{number}", url=f"https://h{number}.example/", customer_id=f"c{number}")


async def simulate() -> dict[str, Any]:
    """Return the figures of each phase, and the ratios of the second to the first."""
    rng, clock = random.Random(1), fakes.PassingClock()
    clock.install()
    registered = [_endpoint(number) for number in range(ENDPOINTS)]
    weights = list(itertools.accumulate((number + 1) ** -0.9 for number in range(ENDPOINTS)))
    endpoints = Endpoints(rng)
    workers = [Worker(endpoints, clock) for _ in range(WORKERS)]
    known = unhealthy_endpoints.UnhealthyEndpoints(ATTEMPT_S, clock)
    arrives_at = clock.now
    found: dict[str, Any] = {}
    for phase, seconds in PHASES.items():
        endpoints.is_disturbed = phase == "slow"
        latencies_s, lasted_s, reports, deferred, ends_at = [], [], 0, 0, clock.now + seconds
        while clock.now < ends_at:
            began, arrived, tasks, now_unhealthy = clock.now, {}, ([], []), known.current()
            while arrives_at <= began:
                delivery = builders.delivery(endpoint=registered[bisect.bisect(weights, rng.random() * weights[-1])])
                if delivery.endpoint.endpoint_id in now_unhealthy.suppressed:
                    deferred += 1
                else:
                    arrived[id(delivery)] = arrives_at
                    tasks[len(arrived) % 2].append(delivery)
                arrives_at += 1 / PER_S
            await asyncio.sleep(BASE_S)
            chosen = zip(rng.sample(workers, 2), tasks, strict=True)
            for made, report in await asyncio.gather(*(worker.deliver(due, now_unhealthy) for worker, due in chosen)):
                reports += len(report.unresponsive)
                known.add_late(report.late)
                known.add_unresponsive(report.unresponsive)
                latencies_s += [
                    began + BASE_S - arrived[id(delivery)] for delivery in made if BEHAVIOUR.is_healthy(number_of(delivery))
                ]
            lasted_s.append(clock.now - began)
        latencies_s.sort()
        found[phase] = {
            "others_p50_ms": round(latencies_s[len(latencies_s) // 2] * 1000),
            "others_p99_ms": round(latencies_s[len(latencies_s) * 99 // 100] * 1000),
            "micro_batch_ms": round(sum(lasted_s) / len(lasted_s) * 1000),
            "reported_unresponsive": reports,
            "deferred_as_suppressed": deferred,
        }
    ratios = {name: found["slow"][name] / found["healthy"][name] for name in ("others_p50_ms", "others_p99_ms")}
    return {**found, "ratio": {name: round(ratio, 2) for name, ratio in ratios.items()}}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(simulate()), indent=2) + "\n")
