"""Start the platform of a load test: real Kafka, real Postgres, and `fanout run` as a user starts it; read its metrics."""

from __future__ import annotations

import collections
import contextlib
import http.client
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import confluent_kafka
import psutil
from prometheus_client import parser

from delivery import errors
from delivery.config import plan_builder, settings_loader
from delivery.webhooks.results import rejected_records
from fanout.admin import registry_commands
from fanout.kafka import topic_scanner
from fanout.local import job as local_job
from fanout.local import kafka_server as local_kafka
from fanout.local import process as local_process
from fanout.local import stack
from fanout.reconcile import accounting, proving
from load_tests.harness import broker_certificates, figures, receiver, usage
from subscriptions_db.manifest import manifest
from subscriptions_db.postgres import connect, migrate

START_TIMEOUT_S = 120
"""Seconds within which a started command must be ready, and the job must make its first delivery."""
WORK_TIMEOUT_S = 180
"""Seconds within which a backlog must be delivered."""
END_TIMEOUT_S = 60
"""Seconds within which the other processes of the job must end after the driver or the JVM was killed."""
TELLING = (
    "fanout_deliveries_total",
    "fanout_rejected_total",
    "fanout_lag_records",
    "fanout_pending_events",
    "fanout_held_endpoints",
    "fanout_endpoints_disabled_total",
    "fanout_egress_broken",
    "fanout_source_up",
)
"""Metrics that explain why a scenario does not end. For example, `postponed` deliveries never arrive without a retry lane."""


class Platform:
    """The running servers of one load test, with the settings and the folder of the platform on them."""

    def __init__(self, folder: Path, servers: stack.Stack) -> None:
        self.folder = folder
        self._servers = servers
        stack.write_local_settings(folder, servers)
        self.config = settings_loader.read({}, folder / "local.toml", root=folder)

    def register(self, document: dict[str, Any]) -> None:
        """Migrate the schema, and register the rows of `document` as `fanout apply` does."""
        with connect.connect(self.config.database) as connection:
            migrate.migrate(connection)
        registry_commands.apply_manifest(self.config, manifest.check(document, plan_builder.guard_of(self.config.delivery)))

    def checkpoint_mb(self, lane: str) -> float:
        """Return the size of a lane's checkpoint on disk, in MB."""
        files = (self.folder / self.config.spark.checkpoint / lane).rglob("*")
        return sum(file.stat().st_size for file in files if file.is_file()) / 1e6

    def account(self) -> accounting.Account:
        """Return the result of `fanout reconcile`: the deliveries by outcome, as the topics say. Called when no job runs."""
        return proving.reconcile(self.config, settle_s=0).account

    @contextlib.contextmanager
    def job(self, lanes: str, overrides: Mapping[str, str]) -> Iterator[Job]:
        """Run lanes (`direct,retry`), with settings (`area.field`) replaced by `overrides`. The context's end stops the job."""
        port = local_kafka.free_port()
        with local_job.running(self.folder, {"metrics.port": str(port), **overrides}, "--lanes", lanes) as process:
            yield Job(process, port, self.folder / local_job.LOG)

    @contextlib.contextmanager
    def command(self, name: str, overrides: Mapping[str, str], *, nice: int) -> Iterator[Command]:
        """Run `fanout archive` or `fanout serve` beside the job. With `nice` above 0, the job has priority for a core."""
        port = local_kafka.free_port()
        replaced = {"metrics.port": str(port), **overrides}
        with local_process.running(self.folder, name, log=f"{name}.log", overrides=replaced) as process:
            usage.step_back(process.pid, nice)
            yield Command(process, port, self.folder / f"{name}.log")

    def rejected(self) -> collections.Counter[str]:
        """Return the numbers of rejected records by reason, each record once."""
        reasons: dict[tuple[str, int, int], str] = {}

        def take(message: confluent_kafka.Message) -> None:
            row = rejected_records.decode(message.value() or b"")
            reasons[row.topic, row.partition, row.offset] = row.reason

        with contextlib.closing(topic_scanner.Scanner(self.config.kafka)) as scanner:
            scanner.read(scanner.extents([self.config.delivery.rejected_topic]), "rejected records", take)
        return collections.Counter(reasons.values())

    @property
    def postgres_pid(self) -> int:
        """Return the pid of Postgres' first process. All other processes of Postgres are its children."""
        return self._servers.postgres.pid

    @property
    def kafka(self) -> local_kafka.EmbeddedKafka:
        """Return the Kafka broker, to kill it and start it again."""
        return self._servers.kafka

    @property
    def kafka_pid(self) -> int:
        """Return the pid of the Kafka broker."""
        return self._servers.kafka.pid


class Command:
    """A running command of `fanout`, with its usage, its metrics and its log."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.meter = usage.Meter(process.pid)
        self._process = process
        self._port = port
        self._log = log
        self._began = time.monotonic()

    def elapsed_s(self) -> float:
        """Return the seconds since the start of the command."""
        return time.monotonic() - self._began

    def wait_until(self, is_so: Callable[[], bool], *, within_s: float, goal: str) -> float:
        """Wait until `is_so()` is True, and return the seconds since the start of the command.

        Raise LocalStackError after `within_s` seconds, and if the command ends. The error names the goal, and has the metrics
        and the end of the log.
        """
        deadline = time.monotonic() + within_s
        while not is_so():
            if self.has_ended() or time.monotonic() > deadline:
                why = "the command has ended" if self.has_ended() else f"not reached within {within_s:.0f} s"
                raise errors.LocalStackError(
                    f"{goal}: {why}, so the load test ends. The condition of the command, and the end of its log {self._log}:\n"
                    f"{self.condition()}\n{self._log.read_text()[-4000:]}"
                )
            time.sleep(0.01)
        return self.elapsed_s()

    def wait_until_ready(self) -> float:
        """Wait until `/readyz` reports ready, and return the seconds since the start of the command."""
        return self.wait_until(self.is_ready, within_s=START_TIMEOUT_S, goal="readiness")

    def has_ended(self) -> bool:
        """Return True if the process has ended."""
        return self._process.poll() is not None

    def metric(self, name: str, **labels: str) -> float:
        """Return the present sum of a metric over all series with these labels; 0 if there are none."""
        _, text = self._got("/metrics")
        samples = (sample for family in parser.text_string_to_metric_families(text) for sample in family.samples)
        return sum(sample.value for sample in samples if sample.name == name and labels.items() <= sample.labels.items())

    def metric_by(self, name: str, label: str) -> dict[str, float]:
        """Return the present sums of a metric, by the values of the label `label`."""
        _, text = self._got("/metrics")
        sums: dict[str, float] = {}
        for family in parser.text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == name and label in sample.labels:
                    sums[sample.labels[label]] = sums.get(sample.labels[label], 0.0) + sample.value
        return sums

    def condition(self) -> str:
        """Return the answer of /readyz, and the metrics in TELLING that are not 0, as text for the message of a failed wait."""
        try:
            status, ready = self._got("/readyz")
            _, text = self._got("/metrics")
        except OSError as exc:
            return f"the command does not answer over HTTP: {exc}"
        samples = [sample for family in parser.text_string_to_metric_families(text) for sample in family.samples]
        telling = [sample for sample in samples if sample.value and sample.name in TELLING]
        shown = [f"{sample.name}{dict(sample.labels)}: {sample.value:,.0f}" for sample in telling]
        return "\n".join([f"/readyz: {status} {ready.strip()}", *shown])

    def is_ready(self) -> bool:
        """Return True if `/readyz` reports ready."""
        try:
            return self._got("/readyz")[0] == http.HTTPStatus.OK
        except OSError:
            return False  # the server is not open yet

    def _got(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()


class Job(Command):
    """The running job (`fanout run`)."""

    def work_off(
        self,
        customers: receiver.Receiver,
        warm_up: int,
        until: int,
        say: Callable[[str], None],
        measured: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> figures.Throughput:
        """Wait until the receiver has `until` deliveries, those of earlier jobs included, and return the throughput.

        The first `warm_up` deliveries of this job are its warm-up. `measured` returns a context for the time after the warm-up.
        """
        before = customers.count

        def reached(count: int) -> Callable[[], bool]:
            return lambda: customers.count >= count

        first_s = self.wait_until(reached(before + 1), within_s=START_TIMEOUT_S, goal="the first delivery")
        say(f"first delivery after {first_s:.1f} s")
        warm_s = self.wait_until(reached(before + warm_up), within_s=WORK_TIMEOUT_S, goal="the warm-up")
        used = self.meter.read()
        say(f"warm after {warm_s:.1f} s: JVM {used.jvm_s:.1f} s, Python {used.python_s:.1f} s of CPU")
        with measured():
            warm, warm_count, began_s = self.meter.read(), customers.count, self.elapsed_s()
            took_s = self.wait_until(reached(until), within_s=WORK_TIMEOUT_S, goal="the last delivery") - began_s
            spent, count = self.meter.read().since(warm), customers.count - warm_count
        say(f"{count:,} deliveries in {took_s:.1f} s")
        return figures.Throughput(
            first_s=first_s,
            warm_s=warm_s,
            warm=warm,
            warm_count=warm_count - before,
            took_s=took_s,
            spent=spent,
            count=count,
        )

    def kill(self, role: str, rng: random.Random) -> None:
        """Send SIGKILL to the process with this role: `driver`, `jvm`, or a random process with the role `worker`.

        After a kill of the driver or the JVM, wait until all processes of the job have ended. Raise LocalStackError if the job
        has no such process.
        """
        processes = self.meter.processes()
        found = sorted((process for process, its_role in processes if its_role == role), key=lambda process: process.pid)
        if role == "worker":
            found = [process for process in found if process.parent() in found]  # without the daemons that forked them
        if not found:
            raise errors.LocalStackError(
                f"the job has no process with the role {role}, so none was killed, and the load test ends: see {self._log}"
            )
        rng.choice(found).kill()
        if role != "worker":
            psutil.wait_procs([process for process, _ in processes], timeout=END_TIMEOUT_S)
            self._process.wait(END_TIMEOUT_S)

    def micro_batches(self, lane: str) -> list[figures.MicroBatch]:
        """Return the committed micro-batches of a lane. The job needs `logs.format` json."""
        return list(figures.micro_batches(self._log.read_bytes().splitlines(), lane))


@contextlib.contextmanager
def started(root: Path | None = None, *, over_tls: bool = False) -> Iterator[Platform]:
    """Start Kafka and Postgres in the folder `root`, or in a temporary one. `root` is emptied first.

    With `over_tls`, Kafka answers over mutual TLS only, and the settings of the platform say so.
    """
    with contextlib.ExitStack() as context:

        def made(name: str) -> Path:
            return Path(context.enter_context(tempfile.TemporaryDirectory(prefix=f"fanout-{name}-")))

        folder = root or made("load")
        tls = broker_certificates.write(made("certificates")) if over_tls else None
        yield Platform(folder.resolve(), context.enter_context(stack.Stack(folder, is_fresh=True, kafka_tls=tls)))
