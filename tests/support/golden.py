"""Archive the state of one version of the platform, so that tests can start later versions on this state.

An archive is of a job that was stopped gracefully while deliveries waited in both lanes with state. An archive has the
checkpoint, all records of the job's topics, the registry, and the requests that the same version made after a restart.
tests/e2e/test_upgrade.py restores each archive of tests/e2e/data and starts the present code on it instead.

Make an archive of each version that is released, and before any stored format changes (delivery.webhooks.state.versioning).
Making an archive takes three minutes, a checkout of the version with its jars (`fanout prepare`), and dependencies that suit
both the checkout and this code:

    python -m tests.support.golden path/of/the/checkout tests/e2e/data/retry-index-2.zip

`retry-index-2` was made by 552de431, the last version before the modules moved into folders (2026-11-25). That version wrote
the retry lane's index in format 2, as later versions do. Most of its modules, and many of its classes, had other names.

`retry-index-1` was made by 30c0696, before the first release. That version wrote the retry lane's index in format
1, had no background attempts and no replays, and passed rows of results through the state.
"""

from __future__ import annotations

import base64
import contextlib
import io
import os
import signal
import subprocess
import sys
import tempfile
import tomllib
import uuid
import zipfile
from pathlib import Path
from typing import NamedTuple

import confluent_kafka
import orjson
import yaml

from delivery.config import kafka_clients
from delivery.stages.kafka import record_reader, topics
from fanout.local import kafka_server as local_kafka
from fanout.local import receiver, stack
from subscriptions_db.postgres import connect
from tests.e2e.conftest import SECRET, Platform, assert_eventually, metric

NAME = "golden"
LEFT = "left.json"
"""File in the archive with the topics, the registry and the requests. All other files are the checkpoint."""
SHARDS = {"batch": {"shards": 2}, "retry": {"shards": 2}}
WAITS = 3
"""Events of each endpoint."""
RETRIED = {"retry": {"schedule_s": [1, 120, 600]}}
ENDPOINTS = {
    "well": {},
    "fails": RETRIED,
    "in-order": {"order_by": "account", **RETRIED},
    "paused": {"status": "paused"},
    "batch-fails": {"mode": "batch", "batch": {"max_events": WAITS, "max_wait_s": 100}, **RETRIED},
    "batch-waits": {"mode": "batch", "batch": {"max_events": 100, "max_wait_s": 100}},
}
FAILING = [name for name in ENDPOINTS if "fails" in name or name == "in-order"]
START_S = 240
GOES_ON_S = 300


class Delivered(NamedTuple):
    """The part of a request that is the same whichever version makes it."""

    endpoint: str
    webhook_id: str
    events: list[str]


class Golden:
    """An archive that was read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with zipfile.ZipFile(path) as archive:
            left = orjson.loads(archive.read(LEFT))
        self._topics = left["topics"]
        self.registry = left["registry"]
        self.delivered = [Delivered(*fields) for fields in left["delivered"]]
        """Requests of the archived version after its restart."""

    def restore(self, platform: Platform) -> None:
        """Write the archived records to the topics, at the same offsets as before, and unpack the checkpoint."""
        with zipfile.ZipFile(self._path) as archive:
            archive.extractall(platform.folder, [name for name in archive.namelist() if name != LEFT])
        kafka = platform.config.kafka
        # Their records may be older than a topic is kept for otherwise.
        topics.ensure(kafka, self._topics, 1, topics.RETRIES_TOPIC_CONFIG)
        producer = confluent_kafka.Producer({"enable.idempotence": True} | kafka_clients.for_librdkafka(kafka))
        for name, records in self._topics.items():
            for key, value, headers, timestamp in records:
                noted = [(header, _bytes(text)) for header, text in headers]
                producer.produce(name, _bytes(value), _bytes(key), partition=0, headers=noted, timestamp=timestamp)
        assert producer.flush(30) == 0


def write(checkout: Path, path: Path) -> None:
    """Run the version in `checkout`, and write the archive of its state to `path`."""
    with (
        tempfile.TemporaryDirectory(prefix="fanout-golden-", ignore_cleanup_errors=True) as folder,
        stack.Stack(Path(folder) / "servers") as servers,
    ):
        servers.postgres.create_database(NAME)
        platform = Platform(servers.kafka, servers.postgres.url_of(NAME), Path(folder), NAME)
        with platform.receiving():
            _write(platform, _Version(platform, checkout), path)


def _write(platform: Platform, version: _Version, path: Path) -> None:
    registry = _registry(platform.receiver.url)
    (platform.folder / "registry.yaml").write_text(yaml.safe_dump(registry))
    version.call("db", "migrate")
    version.call("apply", "registry.yaml")
    # The entries must wait for as long as this test exists, longer than the month that is allowed.
    _update(platform, "alter table endpoints drop constraint endpoints_retry_max_age_s_check")
    _update(platform, "update endpoints set retry_max_age_s = 3e9")
    platform.statuses |= dict.fromkeys(FAILING, 500)
    platform.create_topic("order", 1)
    with version.running() as port:
        for number in range(WAITS):
            platform.publish(1, first=number, account="a")
        retried = WAITS * (len(FAILING) + 1)
        assert_eventually(lambda: metric(port, 'pending_events{lane="batch"}'), lambda count: count == WAITS, within_s=START_S)
        assert_eventually(lambda: metric(port, 'pending_events{lane="retry"}'), lambda count: count == retried)
        assert_eventually(lambda: metric(port, "held_endpoints"), lambda count: count == len(FAILING))
    left = {"registry": registry, "topics": _topics(platform)}
    archived = io.BytesIO()
    archive = zipfile.ZipFile(archived, "w", zipfile.ZIP_DEFLATED)
    for file in filter(Path.is_file, (platform.folder / "checkpoint").rglob("*")):
        archive.write(file, file.relative_to(platform.folder))

    before = len(platform.received)
    platform.statuses.clear()
    _update(platform, "update endpoints set status = 'active'")
    with version.running():
        waiting = WAITS * (len(ENDPOINTS) - 1)
        assert_eventually(
            lambda: list(map(taken, platform.received[before:])),
            lambda got: sum(len(request.events) for request in got) >= waiting,
            within_s=GOES_ON_S,
        )
    left["delivered"] = [tuple(taken(request)) for request in platform.received[before:]]
    assert {endpoint for endpoint, *_ in left["delivered"]} == ENDPOINTS.keys() - {"well"}
    archive.writestr(LEFT, orjson.dumps(left))
    archive.close()
    path.write_bytes(archived.getvalue())


def taken(request: receiver.Received) -> Delivered:
    """Return the endpoint, the `webhook-id` and the events of a request."""
    body = orjson.loads(request.body)
    events = body if isinstance(body, list) else [body]
    return Delivered(request.path.strip("/"), request.webhook_id, [event["id"] for event in events])


class _Version:
    """The commands of the version in a checkout."""

    def __init__(self, platform: Platform, checkout: Path) -> None:
        self._platform = platform
        self._environment = {**os.environ, "PYTHONPATH": str(checkout.resolve())}
        scripts = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]["scripts"]
        self._module = scripts["fanout"].partition(":")[0]  # fanout.cli until the layout of 2026-11-25

    def call(self, *arguments: str) -> None:
        subprocess.run(self._command(*arguments), cwd=self._platform.folder, env=self._environment, check=True)

    @contextlib.contextmanager
    def running(self):
        """Run the job, and yield the port of its metrics. Stop the job gracefully at the end."""
        port = local_kafka.free_port()
        command = self._command("run", metrics={"port": port})
        job = subprocess.Popen(command, cwd=self._platform.folder, env=self._environment, start_new_session=True)
        try:
            yield port
            job.send_signal(signal.SIGTERM)
            assert job.wait(START_S) == 0
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
                job.wait()

    def _command(self, *arguments: str, **overrides: dict[str, object]) -> list[str]:
        document = self._platform.settings(**SHARDS)
        del document["delivery"]["patience_s"]  # which not every version has
        for area, fields in overrides.items():
            document.setdefault(area, {}).update(fields)
        path = self._platform.write_settings(document)
        return [sys.executable, "-m", self._module, "--config", str(path), *arguments]


def _registry(url: str) -> dict[str, object]:
    return {
        "tenants": [{"id": "t1"}],
        "customers": [{"id": "c1"}],
        "endpoints": [
            {"id": name, "customer": "c1", "url": f"{url}/{name}", "signing_secrets": [SECRET], **fields}
            for name, fields in ENDPOINTS.items()
        ],
        "subscriptions": [
            {"id": f"of-{name}", "endpoint": name, "event_type": "order", "everything": True} for name in ENDPOINTS
        ],
    }


def _topics(platform: Platform) -> dict[str, list[list[object]]]:
    """Return the records of all topics, from offset 0 on. Each topic has one partition."""
    client = {"group.id": uuid.uuid4().hex, "enable.auto.commit": False} | kafka_clients.for_librdkafka(platform.config.kafka)
    consumer = confluent_kafka.Consumer(client)
    found: dict[str, list[list[object]]] = {}
    for name in filter(lambda name: NAME in name, consumer.list_topics().topics):
        place = confluent_kafka.TopicPartition(name, 0, 0)
        _, end = consumer.get_watermark_offsets(place)
        consumer.assign([place])
        found[name] = records = []
        while len(records) < end:
            message = consumer.poll(10)
            assert message is not None
            assert (message.error(), message.offset()) == (None, len(records))
            headers = [(header, _text(value)) for header, value in record_reader.headers_of(message)]
            records.append([_text(message.key()), _text(message.value()), headers, message.timestamp()[1]])
    consumer.close()
    return found


def _update(platform: Platform, statement: str) -> None:
    with connect.connect(platform.config.database) as connection:
        connection.execute(statement)


def _text(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
