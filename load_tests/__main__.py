"""The command line of the load tests."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import orjson
import typer

from delivery import errors
from load_tests import options, profile_command
from load_tests.curves import cli as curves_cli
from load_tests.harness import machine_speed, stage, stopping
from load_tests.options import Folder, HtmlFile, JsonFile, Replaced, SvgFile
from load_tests.polls import flood
from load_tests.scaling import scaling_plots
from load_tests.scaling import simulated_days as scaling_scenario
from load_tests.scenarios import away as away_scenario
from load_tests.scenarios import batch as batch_scenario
from load_tests.scenarios import beside as beside_scenario
from load_tests.scenarios import comparison as rival_scenario
from load_tests.scenarios import crash as crash_scenario
from load_tests.scenarios import direct as direct_scenario
from load_tests.scenarios import isolation as isolation_scenario
from load_tests.scenarios import latency as latency_scenario
from load_tests.scenarios import mission as mission_scenario
from load_tests.scenarios import overload as overload_scenario
from load_tests.scenarios import pending as pending_scenario
from load_tests.scenarios import retries as retries_scenario
from load_tests.scenarios.at_scale import command as at_scale_command

S = TypeVar("S")
WRONG = ("lost", "beyond", "unexpected", "unverified", "not_rejected", "polls_failed", "disabled", "held_back")
"""Figures that must be zero or empty. Otherwise the command exits with 1."""
MOST = {"others_p99_ratio": 1.1, "duplicates_share": 0.01, "handed_over_share": 0.001, "back_after_s": 10}
"""Upper bounds of figures: a ratio, two shares, and seconds. Above one of them, the command exits with 1."""

app = typer.Typer(help="Load tests: measure the whole platform on this machine.", no_args_is_help=True)
app.command()(curves_cli.curves)
app.command()(profile_command.profile)
_AWAY = away_scenario.AwayScenario()
_DIRECT = direct_scenario.DirectScenario()
_BATCH = batch_scenario.BatchScenario()
_BESIDE = beside_scenario.BesideScenario(load=beside_scenario.Load.POISON)
_CRASH = crash_scenario.CrashScenario()
_ISOLATION = isolation_scenario.IsolationScenario()
_LATENCY = latency_scenario.LatencyScenario()
_MISSION = mission_scenario.MissionScenario()
_RETRIES = retries_scenario.RetriesScenario()
_RIVAL = rival_scenario.RivalScenario()
_OVERLOAD = overload_scenario.OverloadScenario()
_PENDING = pending_scenario.PendingScenario()
_SCALING = scaling_scenario.ScalingScenario()


@app.command()
def direct(
    json_file: JsonFile = None,
    events: Annotated[int, typer.Option(min=1000, help="Number of measured events.")] = _DIRECT.events,
    warm_up: Annotated[int, typer.Option(min=0, help="Events of the warm-up, before the measurement.")] = _DIRECT.warm_up,
    steady_per_s: Annotated[
        int, typer.Option(help="Events a second of the steady pace, which measures latency.")
    ] = _DIRECT.steady_per_s,
    steady_s: Annotated[int, typer.Option(help="Seconds of the steady pace.")] = _DIRECT.steady_s,
    folder: Folder = None,
    replaced: Replaced = None,
) -> None:
    """Deliver single events to 100 endpoints at full speed, then at a steady pace."""
    scenario = direct_scenario.DirectScenario(events=events, warm_up=warm_up, steady_per_s=steady_per_s, steady_s=steady_s)
    _run(direct_scenario.run, scenario, json_file, folder, replaced)


@app.command()
def batch(
    json_file: JsonFile = None,
    events: Annotated[int, typer.Option(min=1000, help="Number of measured events.")] = _BATCH.events,
    warm_up: Annotated[int, typer.Option(min=0, help="Events of the warm-up, before the measurement.")] = _BATCH.warm_up,
    endpoints: Annotated[
        int, typer.Option(min=10, help="Endpoints, distributed evenly over ten event types.")
    ] = _BATCH.endpoints,
    max_events: Annotated[int, typer.Option(help="Largest number of events in a batch.")] = _BATCH.max_events,
    max_wait: Annotated[float, typer.Option(help="Seconds that an event may wait for its batch.")] = _BATCH.max_wait_s,
    steady_per_s: Annotated[
        int, typer.Option(help="Events a second of the steady pace, which measures waiting times.")
    ] = _BATCH.steady_per_s,
    settle_s: Annotated[int, typer.Option(help="Seconds of the steady pace before the measurement.")] = _BATCH.settle_s,
    steady_s: Annotated[int, typer.Option(help="Seconds of the steady pace.")] = _BATCH.steady_s,
    hot: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the events that are due to one endpoint, in an additional phase.")
    ] = _BATCH.hot,
    folder: Folder = None,
    replaced: Replaced = None,
) -> None:
    """Deliver batches to many endpoints: measure the first batch, full speed, and a steady pace."""
    scenario = batch_scenario.BatchScenario(
        events=events,
        warm_up=warm_up,
        endpoints=endpoints,
        max_events=max_events,
        max_wait_s=max_wait,
        steady_per_s=steady_per_s,
        settle_s=settle_s,
        steady_s=steady_s,
        hot=hot,
    )
    _run(batch_scenario.run, scenario, json_file, folder, replaced)


@app.command()
def isolation(
    json_file: JsonFile = None,
    endpoints: Annotated[int, typer.Option(min=10, help="Endpoints, one of which hangs.")] = _ISOLATION.endpoints,
    per_s: Annotated[int, typer.Option(help="Events a second.")] = _ISOLATION.per_s,
    seconds: Annotated[int, typer.Option(help="Seconds of each of the two phases.")] = _ISOLATION.seconds,
    share: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the events that are due to the hanging endpoint.")
    ] = _ISOLATION.share,
    folder: Folder = None,
    replaced: Replaced = None,
) -> None:
    """Let one endpoint hang, with a share of the events, and measure how long the events of all other endpoints wait."""
    scenario = isolation_scenario.IsolationScenario(endpoints=endpoints, per_s=per_s, seconds=seconds, share=share)
    _run(isolation_scenario.run, scenario, json_file, folder, replaced)


@app.command()
def beside(
    load: Annotated[
        beside_scenario.Load,
        typer.Argument(help="Load beside the events: records that are not events, a hot tenant, or archive and polls."),
    ],
    json_file: JsonFile = None,
    per_s: Annotated[int, typer.Option(help="Measured events a second.")] = _BESIDE.per_s,
    seconds: Annotated[int, typer.Option(help="Seconds of each of the two phases.")] = _BESIDE.seconds,
    warm_up: Annotated[int, typer.Option(min=0, help="Events of the warm-up, before the measurement.")] = _BESIDE.warm_up,
    settle_s: Annotated[int, typer.Option(help="Seconds of each phase before its measurement.")] = _BESIDE.settle_s,
    endpoints: Annotated[
        int, typer.Option(min=20, help="Endpoints, distributed evenly over ten event types.")
    ] = _BESIDE.endpoints,
    hot: Annotated[float, typer.Option(min=0, max=0.95, help="The hot tenant's share of all events.")] = _BESIDE.hot,
    polls_per_s: Annotated[float, typer.Option(min=0.1, help="Polls a second.")] = _BESIDE.flood.polls_per_s,
    greedy_per_s: Annotated[
        float, typer.Option(help="Polls a second of one more customer, who exceeds its limit.")
    ] = _BESIDE.flood.greedy_per_s,
    nice: Annotated[
        int, typer.Option(min=0, max=19, help="Nice value of archive and polls, so that the job has priority for a core.")
    ] = _BESIDE.flood.nice,
    folder: Folder = None,
    replaced: Replaced = None,
) -> None:
    """Deliver events alone, then beside another load, and measure how much longer the events wait."""
    scenario = beside_scenario.BesideScenario(
        load=load,
        endpoints=endpoints,
        warm_up=warm_up,
        settle_s=settle_s,
        per_s=per_s,
        seconds=seconds,
        hot=hot,
        flood=flood.Flood(polls_per_s=polls_per_s, greedy_per_s=greedy_per_s, nice=nice),
    )
    _run(beside_scenario.run, scenario, json_file, folder, replaced)


@app.command()
def away(
    json_file: JsonFile = None,
    bounces: Annotated[
        int, typer.Option(min=0, help="Number of times that the broker is killed and started again.")
    ] = _AWAY.bounces,
    away_s: Annotated[int, typer.Option(help="Seconds of the one long outage of the broker.")] = _AWAY.away_s,
    endpoints: Annotated[
        int, typer.Option(min=10, help="Endpoints, distributed evenly over ten event types.")
    ] = _AWAY.endpoints,
    per_s: Annotated[int, typer.Option(help="Events a second.")] = _AWAY.per_s,
    seed: Annotated[int, typer.Option(help="Seed of the moments of the kills.")] = _AWAY.seed,
    folder: Folder = None,
    replaced: Replaced = None,
) -> None:
    """Kill the broker repeatedly under load, and stop it for long: is anything lost, and does the job continue by itself?"""
    scenario = away_scenario.AwayScenario(bounces=bounces, away_s=away_s, endpoints=endpoints, per_s=per_s, seed=seed)
    _run(away_scenario.run, scenario, json_file, folder, replaced)


@app.command()
def overload(
    json_file: JsonFile = None,
    events: Annotated[
        int, typer.Option(min=1000, help="Number of events; half of them are delivered in batches.")
    ] = _OVERLOAD.events,
    endpoints: Annotated[
        int, typer.Option(min=10, help="Endpoints, distributed evenly over ten event types.")
    ] = _OVERLOAD.endpoints,
    busy: Annotated[int, typer.Option(min=0, help="Number of processes that run busy loops.")] = _OVERLOAD.busy,
    hog_mb: Annotated[
        int, typer.Option(min=1, help="Megabytes of memory that a process allocates and touches.")
    ] = _OVERLOAD.hog_mb,
    disturbed_s: Annotated[int, typer.Option(min=5, help="Seconds of the disturbance.")] = _OVERLOAD.disturbed_s,
    folder: Folder = None,
    replaced: Replaced = None,
) -> None:
    """Take CPU and memory away at full speed, stop a worker, collect the JVM's garbage: are healthy endpoints suppressed?"""
    scenario = overload_scenario.OverloadScenario(
        events=events, endpoints=endpoints, busy=busy, hog_mb=hog_mb, disturbed_s=disturbed_s
    )
    _run(overload_scenario.run, scenario, json_file, folder, replaced)


@app.command()
def crash(
    json_file: JsonFile = None,
    kills: Annotated[int, typer.Option(min=1, help="Number of kills; each takes about half a minute.")] = _CRASH.kills,
    endpoints: Annotated[
        int, typer.Option(min=10, help="Endpoints, distributed evenly over ten event types.")
    ] = _CRASH.endpoints,
    per_s: Annotated[int, typer.Option(help="Events a second.")] = _CRASH.per_s,
    seed: Annotated[int, typer.Option(help="Seed of the moments of the kills and of the killed processes.")] = _CRASH.seed,
    folder: Folder = None,
    replaced: Replaced = None,
) -> None:
    """Kill driver, JVM or workers at random moments under load, and count lost and repeated deliveries."""
    scenario = crash_scenario.CrashScenario(kills=kills, endpoints=endpoints, per_s=per_s, seed=seed)
    _run(crash_scenario.run, scenario, json_file, folder, replaced)


@app.command()
def latency(
    json_file: JsonFile = None,
    rates: Annotated[str, typer.Option(help="Events a second; several rates are separated by commas.")] = ",".join(
        map(str, _LATENCY.rates)
    ),
    seconds: Annotated[int, typer.Option(min=1, help="Seconds of each rate.")] = _LATENCY.seconds,
    endpoints: Annotated[
        int, typer.Option(min=10, help="Endpoints, distributed evenly over ten event types.")
    ] = _LATENCY.endpoints,
    kills: Annotated[int, typer.Option(min=0, help="Number of kills of driver or worker, under load.")] = _LATENCY.kills,
    lanes: Annotated[str, typer.Option(help="Lanes of the job.")] = _LATENCY.lanes,
    folder: Folder = None,
    replaced: Replaced = None,
) -> None:
    """Measure the latency of single events of a real-time topic. Then kill the driver or a worker repeatedly, under load."""
    scenario = latency_scenario.LatencyScenario(
        rates=tuple(map(int, rates.split(","))), seconds=seconds, endpoints=endpoints, kills=kills, lanes=lanes
    )
    _run(latency_scenario.run, scenario, json_file, folder, replaced)


@app.command()
def mission(
    json_file: JsonFile = None,
    topics: Annotated[int, typer.Option(min=2, help="Event types, each with a topic of one partition.")] = _MISSION.topics,
    tenants: Annotated[int, typer.Option(min=10, help="Tenants; at least as many as endpoints.")] = _MISSION.tenants,
    endpoints: Annotated[int, typer.Option(min=10, help="Endpoints; three of ten take batches.")] = _MISSION.endpoints,
    per_s: Annotated[
        list[int] | None, typer.Option(help="Events a second. Repeat the option for several paces in turn.")
    ] = None,
    seconds: Annotated[int, typer.Option(min=10, help="Seconds at each pace.")] = _MISSION.seconds,
    folder: Folder = None,
    replaced: Replaced = None,
) -> None:
    """Run lanes direct, batch and retry with hundreds of topics and thousands of endpoints: latency and cores at each pace."""
    scenario = mission_scenario.MissionScenario(
        topics=topics, tenants=tenants, endpoints=endpoints, per_s=tuple(per_s or _MISSION.per_s), seconds=seconds
    )
    _run(mission_scenario.run, scenario, json_file, folder, replaced)


@app.command()
def rival(
    json_file: JsonFile = None,
    events: Annotated[int, typer.Option(min=1000, help="Events at full speed that are measured.")] = _RIVAL.events,
    warm_up: Annotated[int, typer.Option(min=0, help="Events of the warm-up, before the measurement.")] = _RIVAL.warm_up,
    steady_per_s: Annotated[
        int, typer.Option(help="Events a second of the steady pace, which measures latency.")
    ] = _RIVAL.steady_per_s,
    steady_s: Annotated[int, typer.Option(help="Seconds at the pace that measures latency.")] = _RIVAL.steady_s,
    burst: Annotated[int, typer.Option(min=1000, help="Events of the burst in which the process gets SIGKILL.")] = _RIVAL.burst,
    rounds: Annotated[
        int, typer.Option(min=1, help="Runs of the platform, and as many of the plain consumer. A run takes about two minutes.")
    ] = _RIVAL.rounds,
    folder: Folder = None,
    replaced: Replaced = None,
) -> None:
    """Compare the platform with a plain asyncio consumer on the same work: what does Spark cost, and what does it bring?"""
    scenario = rival_scenario.RivalScenario(
        events=events, warm_up=warm_up, steady_per_s=steady_per_s, steady_s=steady_s, burst=burst, rounds=rounds
    )
    _run(rival_scenario.run, scenario, json_file, folder, replaced)


@app.command()
def retries(
    json_file: JsonFile = None,
    pending: Annotated[int, typer.Option(min=1000, help="Number of waiting deliveries; a million takes some minutes more.")] = (
        _RETRIES.pending
    ),
    endpoints: Annotated[int, typer.Option(min=10, help="Endpoints; nine of ten are paused.")] = _RETRIES.endpoints,
    per_s: Annotated[
        int, typer.Option(help="Events a second to the endpoints that are not paused, through the retry lane.")
    ] = _RETRIES.per_s,
    seconds: Annotated[int, typer.Option(help="Seconds of each of the two measurements.")] = _RETRIES.seconds,
    folder: Folder = None,
    replaced: Replaced = None,
) -> None:
    """Let deliveries accumulate in the retry lane, and measure its micro-batches, memory and checkpoint."""
    scenario = retries_scenario.RetriesScenario(pending=pending, endpoints=endpoints, per_s=per_s, seconds=seconds)
    _run(retries_scenario.run, scenario, json_file, folder, replaced)


@app.command()
def pending(
    json_file: JsonFile = None,
    endpoints: Annotated[int, typer.Option(min=10, help="Endpoints in batch mode.")] = _PENDING.endpoints,
    each: Annotated[
        int, typer.Option(min=1, max=999, help="Waiting events of each endpoint; 999 take some GB of disk.")
    ] = _PENDING.each,
    folder: Folder = None,
    replaced: Replaced = None,
) -> None:
    """Let events wait for their batches, and measure the memory and disk of the batch lane."""
    scenario = pending_scenario.PendingScenario(endpoints=endpoints, each=each)
    _run(pending_scenario.run, scenario, json_file, folder, replaced)


@app.command()
def scaling(
    json_file: JsonFile = None,
    plot: SvgFile = None,
    base_per_s: Annotated[int, typer.Option(min=1, help="Mean of the events a second without spikes.")] = _SCALING.base_per_s,
    days: Annotated[int, typer.Option(min=1, help="Number of simulated days.")] = int(_SCALING.days),
    seed: Annotated[int, typer.Option(help="Seed of the spikes and of the start times of executors.")] = (_SCALING.seed),
) -> None:
    """Simulate days of load with tenfold spikes: measure executor hours and waiting times when executors follow the load."""
    figures = scaling_scenario.run(scaling_scenario.ScalingScenario(base_per_s=base_per_s, days=days, seed=seed))
    if plot is not None:
        scaling_plots.draw(figures, plot)
    if json_file is not None:
        json_file.write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2))
    del figures["shown"]
    sys.stdout.write(orjson.dumps(figures, option=orjson.OPT_INDENT_2).decode() + "\n")


@app.command(name="run")
def run_at_scale(
    scenario: Annotated[str, typer.Argument(help=f"One of: {', '.join(at_scale_command.NAMES)}.")],
    json_file: JsonFile = None,
    html_file: HtmlFile = None,
    share: Annotated[
        float,
        typer.Option(min=1e-6, help="Share of the full rate. average_5k and peak_50k begin their search with this share."),
    ] = 1.0,
    seconds: Annotated[
        int | None, typer.Option(min=3, help="Seconds of each phase, or of each tried share of the rate.")
    ] = None,
    topics: Annotated[int | None, typer.Option(min=2, help="Event types, each with a topic.")] = None,
    tenants: Annotated[int | None, typer.Option(min=10, help="Tenants.")] = None,
    endpoints: Annotated[int | None, typer.Option(min=100, help="Endpoints; three of ten take batches.")] = None,
    warm_up: Annotated[int | None, typer.Option(min=1, help="Events before all phases.")] = None,
    bound: Annotated[
        list[str] | None, typer.Option(help="Replace the limit of a bound, as figure=limit. May be repeated.")
    ] = None,
    folder: Folder = None,
    replaced: Replaced = None,
) -> None:
    """Run a scenario at the mission's scale (docs/load-tests.md). Exit code 1: one of its bounds does not hold."""
    stopping.install()
    size = at_scale_command.ChosenSize(
        share=share, seconds=seconds, topics=topics, tenants=tenants, endpoints=endpoints, warm_up=warm_up
    )
    try:
        chosen = at_scale_command.chosen(scenario, size, bound or ())
    except errors.RegistrationError as exc:
        raise typer.BadParameter(str(exc)) from None
    if not at_scale_command.run(chosen, options.terms(folder, replaced), json_file=json_file, html_file=html_file):
        raise typer.Exit(1)


def _run(
    run: Callable[[S, stage.Terms], dict[str, Any]],
    scenario: S,
    json_file: Path | None,
    folder: Path | None,
    replaced: list[str] | None,
) -> None:
    stopping.install()
    figures = machine_speed.beside(lambda: run(scenario, options.terms(folder, replaced)))
    document = orjson.dumps(figures, option=orjson.OPT_INDENT_2)
    sys.stdout.write(document.decode() + "\n")
    if json_file is not None:
        json_file.write_bytes(document)
    is_beyond = any(figures.get(name, 0) > most for name, most in MOST.items())
    if is_beyond or any(figures.get(name) for name in WRONG) or not figures["reconciled"]["holds"]:
        raise typer.Exit(1)


app(prog_name="python -m load_tests")
