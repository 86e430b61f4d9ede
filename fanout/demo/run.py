"""Run the demo: start everything, publish, change subscriptions meanwhile, stop the job in order, and reconcile.

Runs in the command. The job is a process of its own, started as a user would: `fanout run`.
"""

from __future__ import annotations

import collections
import contextlib
import random
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import rich.console
import rich.progress
import rich.table

from delivery import configuration, errors, plan, settings
from delivery.stages import topics
from fanout import ledger, proving, publishing, receiver, registering
from fanout.demo import reconcile, scenario
from fanout.local import job as local_job
from fanout.local import stack
from subscriptions_db import connect, manifest, migrate, registry

ROOT = Path(".fanout/demo")
JOB_LOG = ROOT / local_job.LOG
EVENTS_PER_S = 500
CHANGE_AFTER, RESUME_AFTER = 0.4, 0.7
"""The shares of the events after which the registry is changed, and after which what was paused then is resumed."""
OVERRIDES = {"spark.master": "local[6,4]", "retry.probe_interval_s": "1", "retry.max_probe_interval_s": "4"}
"""Of the job: a demo is too short to leave an endpoint alone for a minute."""
START_TIMEOUT_S = 120
QUIET_TIMEOUT_S = 60
PARTITIONS = 1


class Interrupted(errors.FanoutError):
    """The demo was asked to stop."""


@dataclass
class _Scene:
    """What the demo keeps while it runs."""

    config: settings.Settings
    document: dict[str, Any]
    receiver_url: str
    stop: threading.Event
    reader: ledger.Reader
    is_changed: threading.Event
    history: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    placed: list[reconcile.PlacedEvent] = field(default_factory=list)
    published_until: dict[ledger.Place, int] = field(default_factory=dict)
    _by_message: dict[publishing.Message, scenario.PublishedEvent] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._publisher = publishing.Publisher(self.config.kafka, self._note)

    def publish(self, events: Sequence[scenario.PublishedEvent], *others: publishing.Message) -> None:
        self._by_message = {event.message: event for event in events}
        for message in (*self._by_message, *others):
            self._publisher.publish(message)
        self._publisher.flush()

    def _note(self, where: publishing.Placed) -> None:
        place = ledger.Place(where.message.topic, where.partition)
        self.published_until[place] = max(self.published_until.get(place, -1), where.offset)
        event = self._by_message.get(where.message)
        if event is not None:
            self.placed.append(
                reconcile.PlacedEvent(
                    event=event, partition=where.partition, offset=where.offset, appended_at_ms=where.appended_at_ms
                )
            )

    def register(self, document: dict[str, Any]) -> None:
        wanted = manifest.check(document, plan.guard_of(self.config.delivery))
        registering.apply_manifest(self.config, wanted, prune=True)
        with connect.connect(self.config.database) as connection:
            self.history.append((registry.revision(connection), document))
        self.document = document

    def has_everything_ended(self) -> bool:
        recorded = self.reader.ledger
        for lane in reconcile.LANES:
            until = recorded.handled_until(lane)
            if any(until.get(place, -1) < last for place, last in self.published_until.items()):
                return False
        return recorded.pending() == 0

    def check_on(self, job: subprocess.Popen[bytes]) -> None:
        if self.stop.is_set():
            raise Interrupted("stopped; nothing is left running")
        if job.poll() is not None:
            raise errors.LocalStackError(f"the job ended by itself with code {job.returncode}; see {JOB_LOG}")


def run(*, events: int, seed: int, console: rich.console.Console, stop: threading.Event) -> reconcile.Account:
    """Run the demo and return the account of every due delivery."""
    began = time.monotonic()
    received: list[receiver.Received] = []
    secrets: dict[str, list[str]] = {}
    is_changed = threading.Event()
    console.print("[bold]1[/] starting Postgres, Kafka and the receivers …")
    with (
        stack.Stack(ROOT, is_fresh=True) as servers,
        receiver.Receiver(
            secrets_of=lambda path: secrets[path.rsplit("/", 1)[1]],
            on_received=received.append,
            answer=lambda path: scenario.answer(path, is_changed=is_changed.is_set()),
            rejects=scenario.rejects,
        ) as receivers,
    ):
        scene = _prepare(servers, receivers.url, seed, stop, is_changed)
        for document in (scene.document, scenario.changed(scene.document, receivers.url)):
            secrets |= {row["id"]: row["signing_secrets"] for row in document["endpoints"]}
        console.print(f"[bold]2[/] registered {_counts(scene.document)}")
        console.print("[bold]3[/] starting the job: fanout run")
        with contextlib.closing(scene.reader):
            with local_job.running(ROOT, OVERRIDES) as job:
                _play(scene, job, events, seed, console)
                console.print("[bold]5[/] stopping the job in order …")
            if job.returncode:
                raise errors.LocalStackError(f"the job ended with code {job.returncode}; see {JOB_LOG}")
            while scene.reader.poll(timeout_s=1.0):
                pass
        console.print("[bold]6[/] holding what was due against receivers and topics: fanout reconcile")
        proof = proving.reconcile(scene.config, settle_s=0).account
        result = reconcile.account(
            scene.placed,
            scene.history,
            scene.reader.ledger,
            received,
            findings=[finding.text() for finding in proof.findings.kept],
            wall_s=time.monotonic() - began,
        )
    _show(console, result)
    return result


def _prepare(servers: stack.Stack, receiver_url: str, seed: int, stop: threading.Event, is_changed: threading.Event) -> _Scene:
    stack.write_local_settings(ROOT, servers)
    config = configuration.read({}, ROOT / "local.toml", root=ROOT)
    with connect.connect(config.database) as connection:
        migrate.migrate(connection)
    topics.ensure(config.kafka, [scenario.TOPIC_PREFIX + event_type for event_type in scenario.EVENT_TYPES], PARTITIONS)
    topics.ensure_all(config)
    scene = _Scene(
        config=config,
        document={},
        receiver_url=receiver_url,
        stop=stop,
        reader=ledger.Reader(config.kafka, config.delivery),
        is_changed=is_changed,
    )
    scene.register(scenario.registry(receiver_url, random.Random(seed)))  # test data
    return scene


def _play(scene: _Scene, job: subprocess.Popen[bytes], events: int, seed: int, console: rich.console.Console) -> None:
    """Publish the events at a steady pace, change the registry in between, and wait until all has ended."""
    recorded = scene.reader.ledger
    columns = ("[progress.description]{task.description}", rich.progress.BarColumn(), rich.progress.MofNCompleteColumn())
    with rich.progress.Progress(*columns, console=console) as progress:
        published = progress.add_task("    published", total=events)
        handled = progress.add_task("    handled", total=events)

        def advance(timeout_s: float) -> int:
            scene.check_on(job)
            count = scene.reader.poll(timeout_s)
            done = collections.Counter[str]()
            for (lane, _), receipts in recorded.receipts.items():
                done[lane] += sum(receipt["records"] for receipt in receipts)
            progress.update(handled, completed=min(events, *(done[lane] for lane in reconcile.LANES)))
            return count

        def has_begun() -> bool:
            return {lane for lane, _ in recorded.receipts} == set(reconcile.LANES)

        scene.publish((), *scenario.bad_records())
        _await(has_begun, advance, START_TIMEOUT_S, "the job handled nothing")
        console.print("[bold]4[/] publishing, while the receivers verify every signature")
        made = list(scenario.events(events, random.Random(seed)))  # test data
        change_at, resume_at = int(events * CHANGE_AFTER), int(events * RESUME_AFTER)
        step = EVENTS_PER_S // 10
        for first in range(0, events, step):
            due_at = time.monotonic() + step / EVENTS_PER_S
            if first <= change_at < first + step:
                scene.register(scenario.changed(scene.document, scene.receiver_url))
                scene.is_changed.set()
                console.print("    … changed eleven endpoints and subscriptions while the job runs; two endpoints answer again")
            if first <= resume_at < first + step:
                scene.register(scenario.resumed(scene.document))
                console.print("    … resumed the two endpoints that were paused")
            scene.publish(made[first : first + step])
            progress.update(published, completed=min(first + step, events))
            advance(max(0.0, due_at - time.monotonic()))
        _await(scene.has_everything_ended, advance, QUIET_TIMEOUT_S, "the job does not get on")


def _await(is_so: Callable[[], bool], advance: Callable[[float], int], timeout_s: float, problem: str) -> None:
    """Read on until `is_so`; raise when nothing at all has come for `timeout_s`."""
    last = time.monotonic()
    while not is_so():
        if advance(0.2):
            last = time.monotonic()
        if time.monotonic() - last > timeout_s:
            raise errors.LocalStackError(f"{problem} for {timeout_s} s; see {JOB_LOG}")


def _counts(document: dict[str, Any]) -> str:
    return ", ".join(f"{len(rows)} {kind}" for kind, rows in document.items())


def _show(console: rich.console.Console, result: reconcile.Account) -> None:
    table = rich.table.Table(title="Every due (event, subscription), reconciled", title_justify="left")
    table.add_column("")
    for name in (*result.lanes, "together"):
        table.add_column(name, justify="right")
    lanes = list(result.lanes.values())
    reasons = sorted({reason for lane in lanes for reason in lane.skipped})
    rows: list[tuple[str, int | list[int]]] = [
        ("events published", result.events),
        ("due deliveries", [lane.due for lane in lanes]),
        ("  delivered and verified by the receivers", [lane.delivered for lane in lanes]),
        ("  dead-lettered", [lane.dead_lettered for lane in lanes]),
        *((f"  skipped: {reason}", [lane.skipped.get(reason, 0) for lane in lanes]) for reason in reasons),
        ("  pending", [lane.pending for lane in lanes]),
        ("  lost", [len(lane.lost) for lane in lanes]),
        ("sent twice", [lane.duplicates for lane in lanes]),
        ("signatures that did not verify", result.unverified),
        ("delivered though not due", len(result.unexpected)),
        ("bad records, kept for the operator", result.rejected),
        ("findings of fanout reconcile", len(result.findings)),
    ]
    for name, counts in rows:
        cells = [*counts, sum(counts)] if isinstance(counts, list) else [*([""] * len(lanes)), counts]
        table.add_row(name, *map(str, cells))
    console.print(table)
    left = ", ".join(f"{count} by {reason}" for reason, count in sorted(result.batches.items()))
    console.print(f"{sum(result.batches.values())} batches left: {left}")
    for name, lane in result.lanes.items():
        percentiles = ", ".join(f"{percentile} {value:.0f} ms" for percentile, value in lane.latency_ms.items())
        console.print(f"{name}: from Kafka to the receiver's answer {percentiles}")
    console.print(f"whole demo {result.wall_s:.0f} s")
    for pair in [*(pair for lane in lanes for pair in lane.lost), *result.unexpected][:10]:
        console.print(f"[red]does not add up: event {pair[0]}, subscription {pair[1]}[/]")
    for finding in result.findings[:10]:
        console.print(f"[red]does not add up:[/] {finding}", markup=True)
    verdict = (
        "[bold green]Nothing is lost, and every signature verified.[/]" if result.holds else "[bold red]It does not add up.[/]"
    )
    console.print(verdict)
