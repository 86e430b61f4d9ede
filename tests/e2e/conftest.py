"""The whole platform, as a user starts it: real Kafka, real Postgres, real receivers, `fanout run` as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
import uuid

import orjson
import psutil
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, ResourceType

from delivery.config import kafka_clients, plan_builder, settings
from delivery.stages.kafka import topics
from fanout.admin import registry_commands
from fanout.kafka import publishing, topic_scanner
from fanout.local import receiver, stack
from fanout.reconcile import ledger, proving
from subscriptions_db.manifest import manifest
from subscriptions_db.postgres import connect, migrate

SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
START_S = 600
"""For a job to start and to do what it has to at first, also on a machine that is busy many times over."""
JOB_TIMEOUT_S = START_S
"""For one that ends by itself."""


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("e2e"):
            item.add_marker(pytest.mark.timeout(3 * START_S))


def assert_eventually(value, holds, *, within_s=START_S, every_s=0.1):
    """Ask `value` until `holds` of it; fail with the last value. A `value` that reads Kafka is asked less often.

    The limit is no promise of the platform: it ends a test that waits for what never comes.
    """
    deadline = time.monotonic() + within_s
    while True:
        last = value()
        if holds(last):
            return last
        assert time.monotonic() < deadline, f"after {within_s} s the last value was {last!r}"
        time.sleep(every_s)


def metric(port, name):
    """Return the value of a metric from the job that serves on this port; None before the job serves it."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            found = re.search(rf"^fanout_{re.escape(name)} (\S+)", answer.read().decode(), re.MULTILINE)
    except OSError:
        return None
    return float(found[1]) if found else None


def children(pid):
    """Return the process ids below a process: none when it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [child.pid for child in psutil.Process(pid).children()]
    return []


def command_of(pid):
    """Return the command line of a process: an empty one when it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return " ".join(psutil.Process(pid).cmdline())
    return ""


class HoldingReceiver(receiver.Receiver):
    """Answers at once, or holds all answers after some until `release_answers`.

    A test that breaks something in the middle of a micro-batch holds the rest of it: no machine is too quick for that test.
    """

    def __init__(self, **options):
        super().__init__(**options)
        self._before_hold = math.inf
        self._released = asyncio.Event()

    def hold_answers_after(self, count):
        """Record every request, and answer only the first `count` from now on."""
        self._released.clear()
        self._before_hold = count

    def is_holding(self):
        """Return True if an answer is held."""
        return self._before_hold < 0

    @contextlib.contextmanager
    def holding_answers_after(self, count):
        """Hold all answers but the first `count`, and release them in the end, also when the test fails."""
        self.hold_answers_after(count)
        try:
            yield
        finally:
            self.release_answers()

    def release_answers(self):
        """Let the held answers go, and answer later requests at once."""
        self._before_hold = math.inf
        self._loop.call_soon_threadsafe(self._released.set)

    def release_held_answers(self):
        """Let the held answers go, and hold those to later requests until the next call."""
        self._before_hold = 0
        released, self._released = self._released, asyncio.Event()
        self._loop.call_soon_threadsafe(released.set)

    async def _handle(self, request):
        response = await super()._handle(request)
        self._before_hold -= 1
        if self._before_hold < 0:
            await self._released.wait()
        return response


@functools.cache  # a test asks many times for thousands of bodies
def _event_ids(body):
    found = orjson.loads(body)
    return tuple(event["id"] for event in (found if isinstance(found, list) else [found]))


_in_use = []
"""The platforms whose receiver runs now."""


class Platform:
    """One test's own topics, database and folder on the shared servers."""

    def __init__(self, kafka, database, folder, name=None):
        self.name = name or uuid.uuid4().hex[:8]
        self.folder = folder
        self.received = []
        self.statuses = {}
        self.secrets = [SECRET]
        self._kafka, self._database = kafka, database
        self.keys = {"ring": {"test": stack.new_key()}}
        self._jobs = []

    @contextlib.contextmanager
    def receiving(self):
        """Run the endpoints' receiver."""
        with HoldingReceiver(
            secrets_of=lambda _: self.secrets,
            on_received=self.received.append,
            answer=lambda path: self.statuses.get(path.strip("/"), 200),
        ) as self.receiver:
            _in_use.append(self)
            try:
                yield
            finally:
                _in_use.remove(self)

    def settings(self, **overrides):
        document = {
            "database": {"url": self._database},
            "kafka": {"bootstrap_servers": self._kafka.bootstrap_servers},
            "keys": {**self.keys},
            "source": {"topic_pattern": f"{self.name}\\..+", "topic_prefix": f"{self.name}."},
            "delivery": {
                **stack.DEVELOPMENT,
                "attempts_topic": f"attempts-{self.name}",
                "dead_letter_topic": f"dead-{self.name}",
                "rejected_topic": f"rejected-{self.name}",
                "retries_topic": f"retries-{self.name}",
                "result_partitions": 1,
                # Longer than any stall of the machine: a direct lane alone has no other lane to take over late answers.
                "patience_s": 60,
                "stop_within_s": 3,
            },
            # Each shard costs every micro-batch a task.
            "batch": {"ticks_topic": f"ticks-{self.name}", "shards": 2},
            "retry": {"ticks_topic": f"retry-ticks-{self.name}", "shards": 2},
            "spark": {
                "checkpoint": str(self.folder / "checkpoint"),
                "driver_memory": "1g",
                # A job that waits for a test takes half of the CPU then.
                "conf": {"spark.sql.streaming.pollingDelay": "100"},
            },
        }
        for area, fields in overrides.items():
            document.setdefault(area, {}).update(fields)
        return document

    @property
    def config(self):
        return settings.Settings.model_validate(self.settings())

    def migrate(self):
        with connect.connect(self.config.database) as connection:
            migrate.migrate(connection)

    def register(self, subscriptions, *, tenants=("t1", "t2"), endpoints=("ep1",), customer="c1", prune=False, **fields):
        """Register endpoints without a schedule, unless `fields` has one: what fails is a dead letter at once."""
        document = {
            "tenants": [{"id": tenant} for tenant in tenants],
            "customers": [{"id": customer}],
            "endpoints": [
                {
                    "id": name,
                    "customer": customer,
                    "url": f"{self.receiver.url}/{name}",
                    "signing_secrets": [SECRET],
                    "retry": {"schedule_s": []},
                    **fields,
                }
                for name in endpoints
            ],
            "subscriptions": [
                {"id": f"s{n}", "endpoint": "ep1", "event_type": "order", "everything": True, **row}
                for n, row in enumerate(subscriptions)
            ],
        }
        wanted = manifest.check(document, plan_builder.guard_of(self.config.delivery))
        return registry_commands.apply_manifest(self.config, wanted, prune=prune)

    def create_topic(self, event_type, partitions=2):
        topics.ensure(self.config.kafka, [f"{self.name}.{event_type}"], partitions)

    def assert_deletion_takes_effect(self, subscription_id="s0", *, within_s=2.0):
        """Delete a subscription of ep1 by plain SQL, and see that after this time nothing more comes; ep2 still gets it all."""
        with connect.connect(self.config.database) as connection:
            connection.execute("delete from subscriptions where subscription_id = %s", [subscription_id])
        deleted_at = time.monotonic()
        number = 100
        while time.monotonic() - deleted_at < within_s:
            self.publish(1, first=number)
            number += 1
            time.sleep(0.1)  # a load of ten events a second
        self.publish(5, first=1000)
        assert_eventually(lambda: self.accepted("ep2"), lambda got: "e1004" in got)
        assert not [event_id for event_id in self.accepted() if int(event_id[1:]) >= 1000]

    def add_partitions(self, event_type, partitions):
        admin = AdminClient(kafka_clients.for_librdkafka(self.config.kafka))
        for added in admin.create_partitions([NewPartitions(f"{self.name}.{event_type}", partitions)]).values():
            added.result(10)

    def set_topic(self, topic, name, value):
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        changed = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin = AdminClient(kafka_clients.for_librdkafka(self.config.kafka))
        admin.incremental_alter_configs([changed])[changed].result(10)

    def publish(self, count, *, event_type="order", first=0, **fields):
        """Publish events `e<first>` and on; return their ids."""
        events = [{"id": f"e{n}", "tenant_id": "t1", **fields} for n in range(first, first + count)]
        self.publish_raw(event_type, *map(orjson.dumps, events))
        return [event["id"] for event in events]

    def publish_raw(self, event_type, *values, headers=()):
        self.create_topic(event_type)
        publisher = publishing.Publisher(self.config.kafka)
        for value in values:
            publisher.publish(publishing.Message(topic=f"{self.name}.{event_type}", value=value, headers=headers))
        publisher.flush()

    def start(self, *arguments, **overrides):
        self.configure(**overrides)
        return self.beside("run", *arguments)

    def configure(self, **overrides):
        """Write the settings for the commands that are started from now on."""
        self.write_settings(self.settings(**overrides))

    def write_settings(self, document):
        lines = []
        for area, fields in document.items():
            lines.append(f"[{area}]")
            lines += [f"{name} = {stack.toml(value)}" for name, value in fields.items()]
        path = self.folder / "fanout.toml"
        path.write_text("\n".join(lines))
        return path

    def beside(self, *words):
        """Start a command by the settings that were written last."""
        log = (self.folder / "job.log").open("ab")
        started = subprocess.Popen(
            [sys.executable, "-m", "fanout.cli.main", "--config", "fanout.toml", *words],
            cwd=self.folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        log.close()
        self._jobs.append(started)
        return started

    def run_once(self, *arguments, **overrides):
        assert self.start("--once", *arguments, **overrides).wait(JOB_TIMEOUT_S) == 0, self.log()

    def give_up(self, count):
        """Have `ep1` refuse so many events for good; return the ids under which they were sent."""
        self.register([{}])
        self.statuses["ep1"] = 400
        self.publish(count)
        self.run_once("--lanes", "direct")
        return {request.webhook_id for request in self.received}

    def stop(self, job):
        job.send_signal(signal.SIGTERM)
        return job.wait(JOB_TIMEOUT_S)

    def kill(self, job):
        """SIGKILL to the driver; its JVM and its workers notice and end by themselves."""
        job.kill()
        job.wait()

    def jvm_of(self, job):
        """The process id of the job's JVM, which in these tests is its executor as well."""
        return next(pid for pid in children(job.pid) if "java" in command_of(pid))

    def workers_of(self, job):
        """The process ids of its Python workers: what the daemon has forked."""
        jvms = [pid for pid in children(job.pid) if "java" in command_of(pid)]
        daemons = [pid for jvm in jvms for pid in children(jvm) if "delivery.stages.worker_daemon" in command_of(pid)]
        return [worker for daemon in daemons for worker in children(daemon)]

    def log(self, *, whole=False):
        return (self.folder / "job.log").read_text()[0 if whole else -6000 :]

    def read(self, topic):
        """Return the values of all records that a topic holds now."""
        values = []
        with contextlib.closing(topic_scanner.Scanner(self.config.kafka)) as scanner:
            scanner.read(scanner.extents([topic]), topic, lambda message: values.append(message.value()))
        return values

    def ledger(self):
        topics.ensure_all(self.config)
        found = ledger.Ledger()
        for topic, add in found.adders(self.config.delivery).items():
            for value in self.read(topic):
                add(value)
        return found

    def assert_adds_up(self):
        """Check by `fanout reconcile`, after the job has ended, that each due delivery has ended or waits."""
        account = proving.reconcile(self.config, settle_s=0).account
        assert account.holds, [finding.text() for finding in account.findings.kept]

    def accepted(self, *endpoints):
        """Return the ids of the events that the endpoints accepted, alone or in batches, in the order of arrival."""
        return [event_id for request in self.accepted_requests(*endpoints) for event_id in request]

    def accepted_requests(self, *endpoints):
        """Return the event ids of each request that the endpoints, `ep1` by default, accepted, in the order of arrival."""
        paths = {f"/{endpoint}" for endpoint in endpoints or ["ep1"]}
        return [
            list(_event_ids(request.body)) for request in list(self.received) if request.path in paths and request.status == 200
        ]

    def show_jobs(self):
        """Write the state of each job and the end of their log: pytest shows both if the test has failed."""
        for job in self._jobs:
            status = job.poll()
            sys.stdout.write(f"job {job.pid}: {'still runs' if status is None else f'has ended with {status}'}\n")
        if self._jobs:
            sys.stdout.write(self.log())

    def close(self):
        """Show the jobs, and end those that still run."""
        self.show_jobs()
        for job in self._jobs:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
                job.wait()


@pytest.fixture(autouse=True)
def _jobs_are_shown_after_each_test():
    """Show the jobs of a platform that several tests share. It closes after the last of them, but any of them may fail."""
    yield
    for platform in _in_use:
        platform.show_jobs()


@pytest.fixture
def platform(kafka, database, tmp_path):
    platform = Platform(kafka, database, tmp_path)
    with platform.receiving():
        yield platform
        platform.close()
