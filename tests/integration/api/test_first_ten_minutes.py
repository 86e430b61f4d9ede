"""The commands of docs/first-ten-minutes.md, run by bash from top to bottom, print what the document shows.

`fanout serve` and `fanout listen` run as commands, over a real Postgres and a real Kafka. No job runs: after each publishing
command, the test reads the event from Kafka and archives the delivery that the document tells of.
"""

import contextlib
import datetime as dt
import json
import os
import re
import shutil
import subprocess
import threading
import time
import types
import uuid
from pathlib import Path

import pytest
from typer.testing import CliRunner

from delivery.config import plan_builder, settings_loader
from delivery.model import Attempt, Outcome, OutcomeKind
from delivery.registry_model import CustomerId, SubscriptionId
from delivery.webhooks.events import parsing
from fanout.cli import main
from fanout.local import kafka_server as local_kafka
from fanout.local import process, stack
from subscriptions_db.archive.ingest import writer
from subscriptions_db.postgres import connect
from tests.integration.api.world import Client
from tests.support import archive, builders, reading, topic_records

pytestmark = pytest.mark.integration

PAGE = "docs/first-ten-minutes.md"
PLATFORM, *BLOCKS = re.findall(r"```sh\n(.*?)```(?:\s+```json\n(.*?)```)?", (reading.ROOT / PAGE).read_text(), re.DOTALL)
PRELUDE = """
set -eu -o pipefail
fanout() { jq -nc '$ARGS.positional' --args -- "$@" > asked; cat answered; }
"""
"""A function in place of the command: the test runs it within its own process, which saves a second for each call."""
END = "the end of a block"
TOOLS = ("bash", "curl", "jq", "openssl")


class Shell:
    """A bash that runs one block after another, and a thread that runs its `fanout` commands."""

    def __init__(self, folder: Path, config: Path) -> None:
        self._folder, self._config = folder, config
        for pipe in ("asked", "answered"):
            os.mkfifo(folder / pipe)
        self._log = (folder / "shell.log").open("a+")
        self._process = subprocess.Popen(
            ["/bin/bash"], cwd=folder, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log
        )
        threading.Thread(target=self._run_commands, daemon=True).start()
        self.run(PRELUDE)

    def run(self, commands: str) -> str:
        """Return the output of some commands. A command that fails ends the shell."""
        self._process.stdin.write(f"{commands}\necho; echo {END}\n")
        self._process.stdin.flush()
        lines = []
        for line in self._process.stdout:
            if line == f"{END}\n":
                return "".join(lines)
            lines.append(line)
        raise AssertionError("".join(lines) + (self._folder / "shell.log").read_text())

    def variable(self, name: str) -> str:
        return self.run(f"echo ${name}").strip()

    def close(self) -> None:
        with self._log, self._process:
            self._process.stdin.write("echo '[]' > asked\n")

    def _run_commands(self) -> None:
        while words := json.loads((self._folder / "asked").read_text()):
            done = CliRunner().invoke(main.app, ["--config", str(self._config), *words])
            if done.exit_code != 0:
                self._log.write(f"{words}: {done.output} {done.exception}\n")
            (self._folder / "answered").write_text(done.stdout)


class Platform:
    """The servers of the document's first block, and the archive of a job that delivers at once."""

    def __init__(self, folder: Path, database: str, kafka: local_kafka.EmbeddedKafka) -> None:
        servers = types.SimpleNamespace(postgres=types.SimpleNamespace(url=database), kafka=kafka)
        stack.write_local_settings(folder, servers)
        self.folder = folder
        self.file = folder / "local.toml"
        self.config = settings_loader.read(os.environ, self.file)
        self._offset = 0
        self._ends = {event_id: iter(ends) for event_id, ends in ENDS.items()}

    def archive(self, event_id: str, endpoint_id: str) -> None:
        """Archive the next end of a published event's delivery.

        The receiver accepts order-17. It is away for order-18, and accepts order-18 when that is redriven.
        """
        [event] = [event for event in self._events() if event.event_id == event_id]
        with connect.connect(self.config.database) as opened:
            [row] = opened.execute("select subscription_id from subscriptions where endpoint_id = %s", [endpoint_id]).fetchall()
            outcome = Outcome(
                builders.delivery(
                    event=event,
                    subscription=builders.subscription(subscription_id=SubscriptionId(row["subscription_id"])),
                    endpoint=builders.endpoint(endpoint_id, customer_id=CustomerId("acme")),
                ),
                *next(self._ends[event_id]),
            )
            now = dt.datetime.now(dt.UTC)
            taken = [
                archive.taken_attempts(self._offset, outcome, at=now),
                *archive.taken_letters(self._offset, outcome, at=now),
            ]
            writer.write(opened, taken, archive.KEPT, now=now)
        self._offset += 1

    def _events(self):
        """Return the events in Kafka, as the job's own parser reads them."""
        topic = f"{self.config.source.topic_prefix}order.created"
        layout = plan_builder.layout_of(self.config)
        return [parsing.parse(record, layout) for record, _ in topic_records.records(self.config.kafka, topic)]


def attempt(status: int | None, error_class: str | None) -> Attempt:
    now_ms = time.time_ns() // 1_000_000
    return Attempt(number=1, started_at_ms=now_ms, duration_ms=2.0, status=status, error_class=error_class)


ENDS = {
    "order-17": [(OutcomeKind.DELIVERED, (attempt(200, None),))],
    "order-18": [
        (OutcomeKind.DEAD_LETTERED, (attempt(None, "connect"),), "connect"),
        (OutcomeKind.DELIVERED, (attempt(200, None),)),
    ],
}
"""The ends of the delivery of each published event, one after the other."""


@pytest.fixture
def platform(kafka, database, tmp_path, monkeypatch):
    prefix = f"minutes-{uuid.uuid4().hex[:8]}."
    monkeypatch.setenv("FANOUT_SOURCE_TOPIC_PREFIX", prefix)
    monkeypatch.setenv("FANOUT_SOURCE_TOPIC_PATTERN", rf"{re.escape(prefix)}.+")
    monkeypatch.setattr("delivery.observability.logs.configure", lambda *_: None)  # the runner's standard error ends with it
    return Platform(tmp_path, database, kafka)


@contextlib.contextmanager
def running(platform, ports):
    """Run the API and the receiver as commands, until they are ready."""
    source = {name: os.environ[f"FANOUT_SOURCE_{name.upper()}"] for name in ("topic_prefix", "topic_pattern")}
    overrides = {"api.port": str(ports["8800"])} | {f"source.{name}": value for name, value in source.items()}
    listen = ["listen", "--port", str(ports["9000"]), "--json"]
    with (
        process.running(platform.folder, "serve", log="serve.log", overrides=overrides) as serving,
        process.running(platform.folder, *listen, log="received.ndjson") as listening,
    ):
        deadline = time.monotonic() + 60
        while not (is_ready(ports["8800"]) and "listening" in (platform.folder / "received.ndjson").read_text()):
            assert time.monotonic() < deadline
            assert (serving.poll(), listening.poll()) == (None, None), (platform.folder / "serve.log").read_text()
            time.sleep(0.05)
        yield


def is_ready(port: int) -> bool:
    with contextlib.suppress(ConnectionError):
        return Client(port, None).get("/readyz").status == 200
    return False


@pytest.mark.skipif(not all(map(shutil.which, TOOLS)), reason=f"the page needs {', '.join(TOOLS)}")
def test_the_commands_of_the_page_print_what_it_shows(platform):
    commands = [line.split(" | ")[0].split() for line in PLATFORM[0].splitlines()]
    assert [words[1] for words in commands] == ["up", "db", "serve", "run", "archive", "listen"]  # as the fixtures do
    ports = {shown: local_kafka.free_port() for shown in ("8800", "9000", "9001")}
    with running(platform, ports), contextlib.closing(Shell(platform.folder, platform.file)) as shell:
        for block, shown in BLOCKS:
            printed = shell.run(with_ports(block, ports))
            if shown:
                reading.holds(json.loads(with_ports(shown, ports)), documents(printed)[-1])
            redriven = ["order-18"] if "/redrive" in block else []
            for event_id in [*re.findall(r'"id": "(order-\d+)"', block), *redriven]:
                platform.archive(event_id, shell.variable("ENDPOINT"))


def documents(text: str) -> list[object]:
    """Return the JSON documents of an output, one after the other."""
    found, rest = [], text.strip()
    while rest:
        document, end = json.JSONDecoder().raw_decode(rest)
        found.append(document)
        rest = rest[end:].strip()
    return found


def with_ports(text: str, ports: dict[str, int]) -> str:
    """Return a text with free ports in place of those of the document."""
    return re.sub(r"127\.0\.0\.1:(\d+)", lambda found: f"127.0.0.1:{ports[found[1]]}", text)
