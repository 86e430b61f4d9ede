"""Compare the platform with a plain consumer, on the same work and in turns: what does Spark cost, and what does it bring?

The plain consumer, called rival, is `load_tests.rivals.plain_consumer`. The two sides are the platform and the rival. In each
turn, one side runs. Each turn has its own Kafka, Postgres and receiver, and the same events by one seed. The phases of a turn:

1. Full speed: the topics are filled before the start. CPU and wall time count from the end of the warm-up.
2. Steady pace: events come one by one at a pace that both sides sustain. The receiver measures the age of each event.
3. SIGKILL: the rival, or the platform's driver, is killed when half of a burst has arrived. Then the side starts again.
4. A hanging endpoint: events come as in phase 2, while one of the endpoints takes requests and never answers.

The platform runs its direct lane. After the kill the retry lane runs too, because phase 4 has deliveries that must wait.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from load_tests.harness import figures, platform, receiver, stage, traffic
from load_tests.rivals import process as rival_process

PLATFORM, RIVAL = "platform", "rival"
TURNS = (PLATFORM, RIVAL, RIVAL, PLATFORM)
"""Order of the turns, repeated, so that neither side has the better hours of the machine."""
SETTINGS = {"spark.master": "local[1,4]", "spark.parallelism": "1", "source.max_events_per_batch": "50000"}
"""Settings of the platform, as in the scenario `direct`: one worker, as the rival is one process."""
AFTER_KILL = {"spark.master": "local[2,4]", "retry.max_probe_interval_s": "5"}
"""Additional settings of the platform after the kill: one task slot for each of the two lanes, and frequent probes.

With frequent probes, the platform soon notices that the hanging endpoint answers again.
"""
QUIET_S = 30.0
"""Seconds without an arrival after which missing events count as lost. A probe that began while the endpoint hung times out
after 15 s, and the next probe follows after 5 s."""
HANGING = traffic.HOT_ENDPOINT
"""Number of the endpoint that hangs in phase 4."""
LOG_OF = {PLATFORM: "job.log", RIVAL: rival_process.LOG}


@dataclass(frozen=True, slots=True, kw_only=True)
class RivalScenario:
    """The size of a comparison with the rival: events, pace and seconds of the four phases of a turn."""

    events: int = 100_000
    """Measured events of phase 1."""
    warm_up: int = 100_000
    """Events of phase 1 before its measurement."""
    endpoints: int = 100
    steady_per_s: int = 500
    """Events a second of phases 2 and 4."""
    steady_s: int = 20
    """Measured seconds of phase 2 and of phase 4."""
    settle_s: int = 10
    """Seconds at the steady pace before the measurement."""
    burst: int = 20_000
    """Events of phase 3."""
    rounds: int = 2
    """Turns of each side."""
    seed: int = 1


class Side(Protocol):
    """Start one side, the platform or the rival, on the servers of a turn."""

    def __call__(self, *, is_again: bool) -> contextlib.AbstractContextManager[platform.Job]:
        """Run the side while the context is open. `is_again` is True for the start after the kill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The figures of one side's turn."""

    side: str
    throughput: figures.Throughput
    steady: Mapping[str, float]
    """Age of an event at its arrival in phase 2, in ms: p50, p90, p99, max."""
    back_s: float
    """Seconds from the restart after the kill to the next delivery."""
    killed: Mapping[str, int]
    """Numbers of lost and repeated events of the burst in phase 3."""
    beside: Mapping[str, float]
    """Age at arrival in phase 4, in ms, of the events for all endpoints except the hanging one: p50, p90, p99, max."""
    hanging_lost: int
    """Events for the hanging endpoint that did not arrive after it answered again."""
    total: Mapping[str, int]
    """Numbers of lost, repeated, misdirected and wrongly signed events, of all phases."""
    deliveries: int
    peak_mb: Mapping[str, float]
    reconciled: Mapping[str, Any] | None = field(default=None)
    """Deliveries of the platform by outcome, as its topics say. None for the rival, which writes no topics."""

    def document(self) -> dict[str, Any]:
        """Return the figures of the turn as JSON values."""
        return {
            "side": self.side,
            **self.throughput.document(),
            "latency_ms": rounded(self.steady),
            "latency_beside_hanging_ms": rounded(self.beside),
            "back_after_kill_s": round(self.back_s, 1),
            "kill": dict(self.killed),
            "hanging_lost": self.hanging_lost,
            **self.total,
            "peak_rss_mb": {role: round(peak) for role, peak in self.peak_mb.items()},
            "reconciled": self.reconciled,
        }


def run(scenario: RivalScenario, terms: stage.Terms) -> dict[str, Any]:
    """Run all turns and return the figures of each, the means of both sides, and their ratio."""
    chosen = {**SETTINGS, **terms.overrides}
    turns = []
    for number in range(2 * scenario.rounds):
        side = TURNS[number % len(TURNS)]
        terms.say(f"turn {number + 1} of {2 * scenario.rounds}: {side}")
        turns.append(_turn(side, scenario, terms, chosen))
    means = {side: mean_of([turn for turn in turns if turn.side == side]) for side in (PLATFORM, RIVAL)}
    own = [turn for turn in turns if turn.side == PLATFORM]
    document = {
        "scenario": "rival",
        **{name: sum(turn.total[name] for turn in own) for name in ("lost", "unexpected", "unverified")},
        "duplicates_share": round(sum(turn.total["duplicates"] for turn in own) / sum(turn.deliveries for turn in own), 5),
        "reconciled": {"holds": all(turn.reconciled is not None and turn.reconciled["holds"] for turn in own)},
        **means,
        "ratio": ratio(means[PLATFORM], means[RIVAL]),
        "steady_per_s": scenario.steady_per_s,
        "burst": scenario.burst,
        "settings": chosen,
        "turns": [turn.document() for turn in turns],
    }
    terms.say(table(document))
    return document


def _turn(side: str, scenario: RivalScenario, terms: stage.Terms, chosen: Mapping[str, str]) -> Turn:
    """Run the four phases with one side, and return the figures of this turn."""
    registered = traffic.Customers(endpoints=scenario.endpoints)
    with terms.stage(registered, seed=scenario.seed) as (servers, customers, sent):
        start = _starter(side, servers, chosen)
        filled = sent.publish(scenario.warm_up + scenario.events)
        with start(is_again=False) as job:
            throughput = job.work_off(customers, scenario.warm_up, len(filled), terms.say)
            steady, _ = _steady(scenario, sent, customers)
            burst = sent.publish(scenario.burst)
            half = len(sent.due) - scenario.burst // 2
            job.wait_until(lambda: customers.count >= half, within_s=platform.WORK_TIMEOUT_S, goal="half of the burst")
            job.meter.read()
            peak_mb = job.meter.peak_mb()
            job.kill("driver", random.Random(scenario.seed))
        at_kill = customers.count
        terms.say(f"killed the {side} when {len(sent.due) - at_kill:,} events of the burst had not arrived")
        with start(is_again=True) as job:
            back_s = job.wait_until(
                lambda: customers.count > at_kill, within_s=platform.START_TIMEOUT_S, goal="a delivery after the kill"
            )
            arrived_after(customers, len(sent.due))
            customers.hang(HANGING)
            beside, hung = _steady(scenario, sent, customers, hanging=HANGING)
            customers.hang(None)
            arrived_after(customers, len(sent.due))
        report = customers.report()
        reconciled = figures.reconciled(servers.account(), report) if side == PLATFORM else None
    times = arrivals(report, len(sent.due))
    return Turn(
        side=side,
        throughput=throughput,
        steady=latency_ms(report, steady, lambda _: True),
        back_s=back_s,
        killed=lost_and_repeated(times, burst),
        beside=latency_ms(report, beside, traffic.is_other),
        hanging_lost=sum(sent.due[number] == HANGING and not times[number] for number in hung),
        total=figures.delivered(report, sent.due),
        deliveries=len(report.numbers),
        peak_mb=peak_mb,
        reconciled=reconciled,
    )


def _starter(side: str, servers: platform.Platform, chosen: Mapping[str, str]) -> Side:
    """Return the function that starts one side on these servers."""

    @contextlib.contextmanager
    def plain(*, is_again: bool) -> Iterator[platform.Job]:  # noqa: ARG001  # the same both times
        with rival_process.running(servers.folder) as started:
            yield platform.Job(started, 0, servers.folder / LOG_OF[RIVAL])  # it serves no metrics

    def whole(*, is_again: bool) -> contextlib.AbstractContextManager[platform.Job]:
        return servers.job("direct,retry", {**chosen, **AFTER_KILL}) if is_again else servers.job("direct", chosen)

    return plain if side == RIVAL else whole


def _steady(
    scenario: RivalScenario, sent: traffic.Traffic, customers: receiver.Receiver, *, hanging: int | None = None
) -> tuple[range, range]:
    """Publish at the steady pace, and wait until the events of all endpoints except `hanging` have arrived.

    Stop waiting if no event arrives for QUIET_S. Return the numbers of the measured events, and the numbers of all events,
    including those before the measurement.
    """
    settling, _ = sent.publish_evenly(scenario.steady_per_s, scenario.settle_s)
    measured, _ = sent.publish_evenly(scenario.steady_per_s, scenario.steady_s)
    hung = sum(sent.due[number] == hanging for number in range(settling.start, measured.stop))
    arrived_after(customers, len(sent.due) - hung)
    return measured, range(settling.start, measured.stop)


def arrived_after(
    customers: receiver.Receiver,
    due: int,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Wait until `due` events have arrived, or no event has arrived for QUIET_S; return True if `due` events have arrived."""
    known, changed_at = customers.count, clock()
    while known < due and clock() - changed_at < QUIET_S:
        sleep(0.01)
        if customers.count != known:
            known, changed_at = customers.count, clock()
    return known >= due


def arrivals(report: receiver.ReceiverReport, count: int) -> Sequence[int]:
    """Return the number of arrivals of each of `count` events, by the event's number."""
    times = [0] * count
    for number in report.numbers:
        times[number] += 1
    return times


def lost_and_repeated(times: Sequence[int], numbers: range) -> dict[str, int]:
    """Return how many of the events `numbers` never arrived (`lost`), and how many arrivals were repeats (`repeated`).

    `times` has the number of arrivals of each event, by the event's number (`arrivals`).
    """
    chosen = times[numbers.start : numbers.stop]
    return {"lost": chosen.count(0), "repeated": sum(chosen) - sum(map(bool, chosen))}


def latency_ms(report: receiver.ReceiverReport, numbers: range, at: Callable[[int], bool]) -> dict[str, float]:
    """Return percentiles of the ages of events at their first arrival, in ms.

    Only events in `numbers` count, and only arrivals at endpoints for which `at` returns True.
    """
    ages: dict[int, float] = {}
    for number, endpoint, age_ms in zip(report.numbers, report.endpoints, report.ages_ms, strict=True):
        if number in numbers and at(endpoint):
            ages.setdefault(number, age_ms)
    return figures.cuts(ages.values())


def mean_of(turns: Sequence[Turn]) -> dict[str, Any]:
    """Return the means over one side's turns, and the sums of lost and repeated events."""

    def mean(value: Callable[[Turn], float]) -> float:
        return round(statistics.fmean(map(value, turns)), 1)

    def cpu(kind: str) -> float:
        return mean(lambda turn: turn.throughput.spent.per_million(turn.throughput.count)[kind])

    return {
        "cpu_s_per_million": {kind: cpu(kind) for kind in ("jvm", "python", "total")},
        "deliveries_per_s": round(mean(lambda turn: turn.throughput.count / turn.throughput.took_s)),
        "first_delivery_s": mean(lambda turn: turn.throughput.first_s),
        "latency_ms": {"p50": mean(lambda turn: turn.steady["p50"]), "p99": mean(lambda turn: turn.steady["p99"])},
        "latency_beside_hanging_ms": {
            "p50": mean(lambda turn: turn.beside["p50"]),
            "p99": mean(lambda turn: turn.beside["p99"]),
        },
        "peak_rss_mb": round(mean(lambda turn: sum(turn.peak_mb.values()))),
        "back_after_kill_s": mean(lambda turn: turn.back_s),
        "lost_by_kill": sum(turn.killed["lost"] for turn in turns),
        "repeated_by_kill": sum(turn.killed["repeated"] for turn in turns),
        "lost_by_hanging": sum(turn.hanging_lost for turn in turns),
        "lost_otherwise": sum(turn.total["lost"] - turn.killed["lost"] - turn.hanging_lost for turn in turns),
    }


def ratio(platform_means: Mapping[str, Any], rival_means: Mapping[str, Any]) -> dict[str, Any]:
    """Return the platform's figures divided by the rival's, without lost and repeated events. A divisor of 0 gives None."""

    def divided(mine: Any, theirs: Any) -> Any:
        if isinstance(mine, Mapping):
            return {name: divided(mine[name], theirs[name]) for name in mine}
        return round(mine / theirs, 2) if theirs else None

    names = [name for name in platform_means if "lost" not in name and "repeated" not in name]
    return {name: divided(platform_means[name], rival_means[name]) for name in names}


def rounded(cuts: Mapping[str, float]) -> dict[str, float]:
    """Return the percentiles of times in ms, rounded to one decimal."""
    return {name: round(value, 1) for name, value in cuts.items()}


ROWS: Sequence[tuple[str, tuple[str, ...]]] = (
    ("CPU seconds per million deliveries, JVM", ("cpu_s_per_million", "jvm")),
    ("CPU seconds per million deliveries, Python", ("cpu_s_per_million", "python")),
    ("CPU seconds per million deliveries, together", ("cpu_s_per_million", "total")),
    ("deliveries per second at full speed", ("deliveries_per_s",)),
    ("first delivery after the start, s", ("first_delivery_s",)),
    ("peak memory, MB", ("peak_rss_mb",)),
    ("latency at the steady pace, p50, ms", ("latency_ms", "p50")),
    ("latency at the steady pace, p99, ms", ("latency_ms", "p99")),
    ("the same beside a hanging endpoint, p50, ms", ("latency_beside_hanging_ms", "p50")),
    ("the same beside a hanging endpoint, p99, ms", ("latency_beside_hanging_ms", "p99")),
    ("first delivery after SIGKILL and restart, s", ("back_after_kill_s",)),
    ("events lost by SIGKILL", ("lost_by_kill",)),
    ("events repeated by SIGKILL", ("repeated_by_kill",)),
    ("events lost by the hanging endpoint", ("lost_by_hanging",)),
    ("events lost otherwise", ("lost_otherwise",)),
)
"""Lines of the table: the text, and the path of keys to the figure in the means of a side."""


def table(document: Mapping[str, Any]) -> str:
    """Return the means of both sides and their ratio as a Markdown table."""

    def text(side: str, keys: Sequence[str]) -> str:
        value: Any = document[side]
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        return "" if value is None else f"{value:,}"

    lines = ["| | platform | rival | ratio |", "|---|---|---|---|"]
    lines += [f"| {name} | {text(PLATFORM, keys)} | {text(RIVAL, keys)} | {text('ratio', keys)} |" for name, keys in ROWS]
    return "\n".join(lines)
