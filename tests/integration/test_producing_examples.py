"""The examples of docs/producing.md run against a real broker, and the job's own parser reads their events.

A test changes only the addresses and the topic of an example. Java's client is a jar of the local broker. Node.js and its
client come from tests/support/node. Go has to be installed, and its client is downloaded.
"""

import datetime as dt
import decimal
import os
import re
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import orjson
import pytest

from delivery.config import settings
from delivery.stages.kafka import topics
from delivery.webhooks.events import parsing
from delivery.webhooks.formats import decoder, registry_client
from fanout.jvm import java
from tests.support import node_packages, topic_records
from tests.support.reading import blocks
from tests.support.schema_registry import SchemaRegistry

pytestmark = pytest.mark.integration
PAGE, BROKER, TOPIC = "docs/producing.md", "localhost:9092", "events.order.created"
PARTITIONS, PARTITION_OF_THE_KEY = 8, 3
"""Partitions of a topic, and the number of the partition that Java's client chooses for the key `tenant-1`."""
EXAMPLE_TIMEOUT_S = 200
"""Seconds for an example, with the download of its client."""
GO_MODULE = Path(__file__).parent / "producers" / "go"
SMALL_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


@pytest.fixture
def topic(kafka):
    """Return the name of a topic of this test's own."""
    name = f"examples-{uuid.uuid4().hex[:8]}"
    topics.ensure(connection(kafka), [name], PARTITIONS)
    return name


def connection(kafka):
    return settings.KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)


def only_record(kafka, topic):
    """Return the only record of the topic, and its key."""
    [found] = topic_records.records(connection(kafka), topic)
    return found


def example(language, *, has_schema=False):
    """Return the example of the page in this language; in Python, with or without a schema registry."""
    [block] = [block for block in blocks(PAGE, language) if ("SCHEMA" in block) is has_schema]
    return block


def in_place(block, kafka, topic):
    """Return the example with this broker and this topic."""
    assert (BROKER in block, TOPIC in block) == (True, True)
    return block.replace(BROKER, kafka.bootstrap_servers).replace(TOPIC, topic)


def in_python(source, folder, _):
    (folder / "write_event.py").write_text(source)
    return [sys.executable, "write_event.py"]


def in_java(source, folder, jars):
    """Compile and run the file at once, which needs the compiler of a JDK."""
    command = java.find()
    modules = subprocess.run([command, "--list-modules"], capture_output=True, text=True, check=True).stdout
    if "jdk.compiler@" not in modules:
        pytest.skip(f"{command} has no compiler: install a JDK, such as openjdk-17-jdk-headless")
    (folder / "WriteEvent.java").write_text(source)
    return [command, *SMALL_JVM, "-cp", os.pathsep.join(map(str, jars.broker)), "WriteEvent.java"]


def in_javascript(source, folder, _):
    packages = node_packages.installed()
    (folder / "node_modules").symlink_to(packages / "node_modules")
    (folder / "write_event.mjs").write_text(source)
    return node_packages.command(packages, str(folder / "write_event.mjs"))


def in_go(source, folder, _):
    shutil.copytree(GO_MODULE, folder, dirs_exist_ok=True)
    (folder / "main.go").write_text(source)
    return ["go", "run", "-mod=readonly", "."]


@pytest.fixture
def event_of(kafka, jars, topic, tmp_path):
    """Return a function that runs the example in a language, and returns the event that the job reads."""

    def event_of(language, command_of):
        command = command_of(in_place(example(language), kafka, topic), tmp_path, jars)
        run(command, tmp_path)
        record, key = only_record(kafka, topic)
        assert (key, record.partition) == (b"tenant-1", PARTITION_OF_THE_KEY)
        return parsing.parse(record, parsing.Layout())

    return event_of


def run(command, folder):
    environment = node_packages.environment()
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=EXAMPLE_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def is_the_event_of_the_page(event):
    assert (event.event_id, event.event_type, event.source) == ("order-17", "order.created", "/shop")
    assert (event.tenant_id, event.sub_tenant_id) == ("tenant-1", None)
    assert (event.data, event.content, event.opaque, event.attributes) == (b'{"amount": 700}', {"amount": 700}, None, ())


@pytest.mark.parametrize(("language", "command_of"), [("python", in_python), ("java", in_java), ("javascript", in_javascript)])
def test_the_example_in_each_language_writes_the_event(event_of, language, command_of):
    is_the_event_of_the_page(event_of(language, command_of))


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("go"), reason="go is not installed")
def test_the_example_in_go_writes_the_same_event(event_of):
    is_the_event_of_the_page(event_of("go", in_go))


@pytest.mark.parametrize(
    ("language", "option"),
    [
        ("python", '"enable.idempotence": True'),
        ("java", '"enable.idempotence", true'),
        ("javascript", "idempotent: true"),
        ("go", "kafka.RequireAll"),
    ],
)
def test_each_client_waits_for_all_replicas(language, option):
    """Idempotence implies `acks=all`. The client in Go has no idempotence."""
    assert option in example(language)


def test_the_example_with_a_schema_registry_writes_its_event(kafka, topic):
    [document] = [orjson.loads(text) for text in blocks(PAGE, "json") if "placed_at" in text]
    placed = dt.datetime(2026, 5, 1, 10, tzinfo=dt.UTC)
    source = in_place(example("python", has_schema=True), kafka, topic)
    with SchemaRegistry() as registry:
        defined = {}
        exec(source.replace("http://localhost:8081", registry.url), defined)  # noqa: S102 - an example of our own page
        defined["write"]({"id": "order-17", "tenant_id": "tenant-1", "amount": decimal.Decimal(700), "placed_at": placed})
        record, key = only_record(kafka, topic)
        access = registry_client.Access(url=registry.url, wait_s=0.01, timeout_s=5.0)
        formats = decoder.Formats(access=access, topic_pattern=re.escape(topic))
        event = decoder.decoder_of(formats, parsing.Layout()).event_now(record)
    assert (key, event.event_id, event.tenant_id, event.content) == (b"tenant-1", "order-17", "tenant-1", document)
