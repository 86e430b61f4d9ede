"""Run the demo: start all, publish while the registry changes, poll and redrive dead letters, stop the platform, reconcile.

Runs in `fanout` commands. The platform runs in its own processes, started as a user does: `fanout run`, `fanout archive` and
`fanout serve`.
"""

from __future__ import annotations

import collections
import contextlib
import random
import resource
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import rich.console
import rich.progress

from delivery import errors
from delivery.config import plan_builder, settings, settings_loader
from delivery.stages.kafka import topics
from delivery.webhooks.results.log_entries import Due
from fanout.admin import registry_commands
from fanout.demo import expected_account, over_http, report, scenario
from fanout.kafka import places, publishing
from fanout.local import job as local_job
from fanout.local import kafka_server, process, receiver, stack
from fanout.reconcile import accounting, ledger, proving
from subscriptions_db.manifest import manifest
from subscriptions_db.postgres import connect, migrate
from subscriptions_db.registration import registered_rows

ROOT = over_http.ROOT
EVENTS_PER_S = 500
"""Events that the demo publishes in one second."""
CHANGE_AFTER, RESUME_AFTER = 0.4, 0.7
"""Shares of the events: after CHANGE_AFTER the registry changes, after RESUME_AFTER the paused endpoints are resumed."""
OVERRIDES = {
    "spark.master": "local[6,4]",
    "delivery.max_connections": "60",
    "retry.probe_interval_s": "1",
    "retry.max_probe_interval_s": "4",
}
"""Settings of the job. All receivers are in this process, which had 2,900 connections without `max_connections`, and many
shells allow 1,024 files. Failing endpoints are probed often, because the demo takes about a minute."""
FILES = 1024
"""Number of files that this process may open, if the system allows it. Some shells allow 256, and the demo opens about 350."""
START_TIMEOUT_S = 120
"""Most seconds without progress while the demo waits for the start of the job and of the API. Progress is a record in the
topics of attempts, dead letters or rejected records."""
QUIET_TIMEOUT_S = 60
"""Most seconds without progress while the demo waits until all deliveries have ended, or polls for missing dead letters.
Progress is a record in the topics of attempts, dead letters and rejected records, or a poll that returns dead letters."""
PARTITIONS = 1
"""Partitions of each event topic."""

Processes = Mapping[str, subprocess.Popen[bytes]]
"""Subcommand of `fanout` → its running process."""


class Interrupted(errors.FanoutError):
    """Raised when SIGTERM or Ctrl-C stops the demo."""


@dataclass
class _Scene:
    """State of the demo while it runs."""

    config: settings.Settings
    document: dict[str, Any]
    receiver_url: str
    stop: threading.Event
    reader: ledger.RecordReader
    repairs: scenario.Repairs
    history: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    placed: list[expected_account.PlacedEvent] = field(default_factory=list)
    published_until: dict[places.Place, int] = field(default_factory=dict)
    _by_message: dict[publishing.Message, scenario.PublishedEvent] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._publisher = publishing.Publisher(self.config.kafka, self._record)

    def publish(self, events: Sequence[scenario.PublishedEvent], *others: publishing.Message) -> None:
        self._by_message = {event.message: event for event in events}
        for message in (*self._by_message, *others):
            self._publisher.publish(message)
        self._publisher.flush()

    def _record(self, where: publishing.Placed) -> None:
        place = places.Place(where.message.topic, where.partition)
        self.published_until[place] = max(self.published_until.get(place, -1), where.offset)
        event = self._by_message.get(where.message)
        if event is not None:
            self.placed.append(
                expected_account.PlacedEvent(
                    event=event, partition=where.partition, offset=where.offset, appended_at_ms=where.appended_at_ms
                )
            )

    def register(self, document: dict[str, Any]) -> None:
        wanted = manifest.check(document, plan_builder.guard_of(self.config.delivery))
        registry_commands.apply_manifest(self.config, wanted, prune=True)
        with connect.connect(self.config.database) as connection:
            self.history.append((registered_rows.revision(connection), document))
        self.document = document

    def has_everything_ended(self) -> bool:
        recorded = self.reader.ledger
        for lane in accounting.LANES:
            until = recorded.handled_until(lane)
            if any(until.get(place, -1) < last for place, last in self.published_until.items()):
                return False
        return recorded.pending() == 0

    def given_up(self, customer_id: str) -> set[Due]:
        """Return the deliveries of a customer that are dead letters according to the records that were read so far."""
        endpoints = {row["id"] for row in self.document["endpoints"] if row["customer"] == customer_id}
        subscriptions = {row["id"] for row in self.document["subscriptions"] if row["endpoint"] in endpoints}
        return {due for due in self.reader.ledger.dead() if due.subscription_id in subscriptions}

    def require_running(self, platform: Processes) -> None:
        if self.stop.is_set():
            raise Interrupted(f"the demo was stopped. Its processes are stopped, and its logs are in {ROOT.absolute()}")
        for name, started in platform.items():
            if started.poll() is not None:
                raise errors.LocalStackError(_ended(name, started))


def run(*, events: int, seed: int, console: rich.console.Console, stop: threading.Event) -> expected_account.ExpectedAccount:
    """Run the demo and return the account of every due delivery.

    Raise Interrupted if `stop` is set while the platform runs. Raise LocalStackError if a process fails, or makes no progress.
    """
    began = time.monotonic()
    received: list[receiver.Received] = []
    secrets: dict[str, list[str]] = {}
    repairs = scenario.Repairs()
    _permit_files()
    console.print("[bold]1[/] starting Postgres, Kafka and the receivers …", markup=True)
    with (
        stack.Stack(ROOT, is_fresh=True) as servers,
        receiver.Receiver(
            secrets_of=lambda path: secrets[path.rsplit("/", 1)[1]],
            on_received=received.append,
            answer=lambda path: scenario.answer(path, repairs),
            rejects=scenario.rejects,
        ) as receivers,
    ):
        scene = _prepare(servers, receivers.url, seed, stop, repairs)
        for document in (scene.document, scenario.changed(scene.document, receivers.url)):
            secrets |= {row["id"]: row["signing_secrets"] for row in document["endpoints"]}
        console.print(f"[bold]2[/] registered {_counts(scene.document)}", markup=True)
        console.print("[bold]3[/] starting fanout run, fanout archive, fanout serve", markup=True)
        with contextlib.closing(scene.reader):
            port = kafka_server.free_port()
            admin, poller = over_http.clients(scene.config, scenario.FAILING_CUSTOMER, port)
            with _running(port) as platform:
                events_ = list(scenario.events(events, random.Random(seed)))  # test data
                _play(scene, platform, admin, events_, console)
                console.print(f"[bold]5[/] polling the dead letters of {scenario.FAILING_CUSTOMER} over HTTP", markup=True)
                given_up, polled = _poll_and_redrive(scene, platform, admin, poller, console)
                console.print("[bold]6[/] stopping everything gracefully …", markup=True)
            while scene.reader.poll(timeout_s=1.0):
                pass
        console.print("[bold]7[/] comparing due deliveries with receivers and topics, by fanout reconcile", markup=True)
        proof = proving.reconcile(scene.config, settle_s=0).account
        result = expected_account.account(
            scene.placed,
            scene.history,
            scene.reader.ledger,
            received,
            given_up=given_up,
            polled=polled,
            findings=[finding.text() for finding in proof.findings.kept],
            wall_s=time.monotonic() - began,
        )
    report.show(console, result)
    return result


@contextlib.contextmanager
def _running(port: int) -> Iterator[Processes]:
    """Run the platform, and stop it gracefully, the job last.

    Raise LocalStackError if a process ended with another code than 0.
    """
    with contextlib.ExitStack() as contexts:
        platform = {
            "run": contexts.enter_context(local_job.running(ROOT, OVERRIDES)),
            "archive": contexts.enter_context(process.running(ROOT, "archive", log="archive.log")),
            "serve": contexts.enter_context(process.running(ROOT, "serve", log="serve.log", overrides={"api.port": str(port)})),
        }
        yield platform
    for name, started in platform.items():
        if started.returncode:
            raise errors.LocalStackError(_ended(name, started))


def _ended(name: str, started: subprocess.Popen[bytes]) -> str:
    log = (ROOT / (local_job.LOG if name == "run" else f"{name}.log")).absolute()
    code = started.returncode
    return f"the demo failed, and its processes are stopped: fanout {name} ended with code {code}. See its log, {log}"


def _permit_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < FILES:
        most = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _prepare(servers: stack.Stack, receiver_url: str, seed: int, stop: threading.Event, repairs: scenario.Repairs) -> _Scene:
    stack.write_local_settings(ROOT, servers)
    config = settings_loader.read({}, ROOT / "local.toml", root=ROOT)
    with connect.connect(config.database) as connection:
        migrate.migrate(connection)
    topics.ensure(config.kafka, [scenario.TOPIC_PREFIX + event_type for event_type in scenario.EVENT_TYPES], PARTITIONS)
    topics.ensure_all(config)
    scene = _Scene(
        config=config,
        document={},
        receiver_url=receiver_url,
        stop=stop,
        reader=ledger.RecordReader(config.kafka, config.delivery),
        repairs=repairs,
    )
    scene.register(scenario.registry(receiver_url, random.Random(seed)))  # test data
    return scene


def _play(
    scene: _Scene,
    platform: Processes,
    api: over_http.Client,
    events_: Sequence[scenario.PublishedEvent],
    console: rich.console.Console,
) -> None:
    """Publish the events at a steady rate, change the registry meanwhile, and wait until every delivery has ended."""
    recorded, events = scene.reader.ledger, len(events_)
    columns = ("{task.description}", rich.progress.BarColumn(), rich.progress.MofNCompleteColumn())
    with rich.progress.Progress(*columns, console=console) as progress:
        published = progress.add_task("    published", total=events)
        handled = progress.add_task("    handled", total=events)

        def advance(timeout_s: float) -> int:
            scene.require_running(platform)
            count = scene.reader.poll(timeout_s)
            done = collections.Counter[str]()
            for (lane, _), receipts in recorded.receipts.items():
                done[lane] += sum(receipt.records for receipt in receipts)
            progress.update(handled, completed=min(events, *(done[lane] for lane in accounting.LANES)))
            return count

        def has_begun() -> bool:
            return {lane for lane, _ in recorded.receipts} == set(accounting.LANES) and api.is_ready()

        scene.publish((), *scenario.bad_records())
        _await(has_begun, advance, START_TIMEOUT_S, "the job has not begun in all lanes, or the API is not ready")
        console.print("[bold]4[/] publishing, while the receivers verify every signature", markup=True)
        change_at, resume_at = int(events * CHANGE_AFTER), int(events * RESUME_AFTER)
        step = EVENTS_PER_S // 10
        for first in range(0, events, step):
            due_at = time.monotonic() + step / EVENTS_PER_S
            if first <= change_at < first + step:
                scene.register(scenario.changed(scene.document, scene.receiver_url))
                scene.repairs.recovering = True
                console.print("    … changed eleven endpoints and subscriptions while the job runs; two endpoints answer again")
            if first <= resume_at < first + step:
                scene.register(scenario.resumed(scene.document))
                console.print("    … resumed the two endpoints that were paused")
            scene.publish(events_[first : first + step])
            progress.update(published, completed=min(first + step, events))
            advance(max(0.0, due_at - time.monotonic()))
        _await(scene.has_everything_ended, advance, QUIET_TIMEOUT_S, "deliveries have not ended")


def _poll_and_redrive(
    scene: _Scene, platform: Processes, admin: over_http.Client, poller: over_http.Client, console: rich.console.Console
) -> tuple[set[Due], over_http.Polled]:
    """Poll the dead letters of the failing customer, repair its endpoints, redrive, and wait for the deliveries.

    Return the deliveries with dead letters in the dead-letter topic before the first poll, and the results of all polls.
    """
    given_up = scene.given_up(scenario.FAILING_CUSTOMER)
    published = {(placed.event.message.topic, placed.partition, placed.offset): placed.event.payload for placed in scene.placed}
    polled = over_http.poll(
        admin, poller, given_up, published, before_poll=lambda: scene.require_running(platform), timeout_s=QUIET_TIMEOUT_S
    )
    console.print(
        f"    … polled and acknowledged {len(polled.acknowledged)}, {len(polled.intact)} of them byte for byte as published"
    )
    scene.repairs.failing = True
    over_http.retry_longer(admin, sorted(scenario.FAILING_ENDPOINTS), scenario.REPAIRED_MAX_AGE_S)
    over_http.redrive(admin)
    console.print("    … repaired its endpoints, and requested a redrive of its dead letters")

    def advance(timeout_s: float) -> int:
        scene.require_running(platform)
        return scene.reader.poll(timeout_s)

    def has_been_delivered_again() -> bool:
        return given_up <= scene.reader.ledger.redriven.keys() and scene.has_everything_ended()

    _await(has_been_delivered_again, advance, QUIET_TIMEOUT_S, "redriven deliveries have not ended")
    return given_up, polled


def _await(is_done: Callable[[], bool], advance: Callable[[float], int], timeout_s: float, problem: str) -> None:
    """Call `advance`, which returns the number of records that it read, until `is_done` returns True.

    Raise LocalStackError, with `problem` in its message, if no record comes for `timeout_s`.
    """
    last = time.monotonic()
    while not is_done():
        if advance(0.2):
            last = time.monotonic()
        if time.monotonic() - last > timeout_s:
            raise errors.LocalStackError(
                f"the demo failed, and its processes are stopped: {problem}, and the topics of attempts, dead letters and "
                f"rejected records got no record for {timeout_s} s. See the logs in {ROOT.absolute()}"
            )


def _counts(document: dict[str, Any]) -> str:
    return ", ".join(f"{len(rows)} {kind}" for kind, rows in document.items())
