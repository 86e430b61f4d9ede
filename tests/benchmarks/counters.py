"""Measure what counting costs a worker: CPU µs per delivery of counters, of an attempt log that writes nothing, and of a merge.

Run: `python -m tests.benchmarks.counters`. An Arrow batch of 10,000 deliveries, one in a hundred retried, as a worker has it.
"""

from __future__ import annotations

import logging
import pickle
import random
import statistics
import time
from collections.abc import Callable

from delivery.model import Attempt, Outcome, OutcomeKind
from delivery.webhooks.results import attempt_log, counters
from delivery.webhooks.results.task_results import Results
from tests.support import builders

DELIVERIES = 10_000
ROUNDS = 15


def results() -> Results:
    """Return the results of a batch."""
    rng = random.Random(1)
    made = Results()
    for number in range(DELIVERIES):
        attempts = tuple(
            Attempt(
                number=nth,
                started_at_ms=1_700_000_000_000 + rng.randrange(5000),
                duration_ms=rng.random() * 100,
                status=None,
                error_class=None if nth == 1 else "server_error",
            )
            for nth in range(1, 3 if number % 100 == 0 else 2)
        )
        made.outcomes.append(Outcome(delivery=builders.delivery(), kind=OutcomeKind.DELIVERED, attempts=attempts))
    return made


def cpu_us(run: Callable[[], object]) -> float:
    """Return the median CPU time of a run in µs."""
    spent = []
    for _ in range(ROUNDS):
        began = time.process_time()
        run()
        spent.append(time.process_time() - began)
    return statistics.median(spent) * 1e6


def main() -> None:
    """Measure and print."""
    attempt_log.log.setLevel(logging.INFO)
    batch = results()
    counted = counters.count(batch, cpu_s=1.0)
    quiet = attempt_log.AttemptLog(0.0, clock=time.monotonic, rng=random.Random())
    print(f"counters of a batch    {cpu_us(lambda: counters.count(batch, cpu_s=1.0)) / DELIVERIES:6.3f} µs per delivery")
    print(f"attempt log, sample 0  {cpu_us(lambda: quiet.write(batch)) / DELIVERIES:6.3f} µs per delivery")
    print(f"merge of two counters  {cpu_us(lambda: counted + counted):6.1f} µs per task, on the driver")
    print(f"size of the counters   {len(pickle.dumps(counted)):6d} bytes per task")


if __name__ == "__main__":
    main()
