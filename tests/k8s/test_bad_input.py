"""A missing or wrong input keeps the driver's pod unready; one line names it, and nothing is consumed.

All cases run at the same time, each in a release of its own that delivers to the same receivers.
"""

import concurrent.futures
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from delivery.config import settings
from fanout.local import stack
from subscriptions_db.postgres import connect, migrate
from tests.k8s import load, release
from tests.k8s.cluster import kubectl, layout
from tests.k8s.platform import secret
from tests.k8s.release import NAMESPACE, Release

NOBODY = f"{layout.CONTROL_PLANE}:9"
"""The address of a node, and a port at which nobody listens."""
OLDER = "older"
"""The database whose schema lacks the newest migration."""
NAMED_WITHIN_S = 150


@dataclass(frozen=True)
class Case:
    """One thing that is wrong."""

    name: str
    says: tuple[str, ...]
    """Pieces of the one line, in any order."""
    kafka: str | None = None
    secrets: dict[str, Any] = field(default_factory=dict)


CASES = [
    Case("missing-secret", ('secret "absent" not found',), secrets={"keyRing": {"name": "absent"}}),
    Case("kafka-away", ("Kafka", NOBODY), kafka=NOBODY),
    Case("postgres-away", (layout.CONTROL_PLANE, "port 9"), secrets={"database": {"name": "bad-database"}}),
    Case("wrong-ring", ("keys.ring", "none of a sample can be opened"), secrets={"keyRing": {"name": "bad-keys"}}),
    Case("older-schema", ("the registry lacks", "fanout db migrate"), secrets={"database": {"name": "bad-schema"}}),
]


@pytest.fixture(scope="module")
def unhappy(installed):
    """The releases, each installed, and the ids of the events that they could consume."""
    with psycopg.connect(installed.servers.postgres.url_of("postgres"), autocommit=True) as connection:
        connection.execute(f"create database {OLDER}")
    with connect.connect(older(installed)) as connection:
        migrate.migrate(connection, migrate.migrations()[:-1])
    first = next(iter(installed.keys))
    kubectl.apply(
        secret("bad-database", {"url": f"postgresql://postgres@{layout.CONTROL_PLANE}:9/fanout"}),
        secret("bad-schema", {"url": installed.servers.url(OLDER)}),
        secret("bad-keys", {"ring": f"{first}={stack.new_key()}"}),
    )
    ids = publish(installed)
    releases = {case.name: Release(case.name) for case in CASES}
    with concurrent.futures.ThreadPoolExecutor() as pool:
        list(pool.map(lambda case: releases[case.name].install(values(installed, case)), CASES))
        yield releases, ids
        list(pool.map(Release.uninstall, releases.values()))
    kubectl.run("delete", "persistentvolumeclaims", "--namespace", NAMESPACE, *[f"{case.name}-fanout-all" for case in CASES])


def older(platform):
    """The settings of the database with the older schema."""
    return settings.DatabaseSettings.model_validate({"url": platform.servers.postgres.url_of(OLDER)})


def publish(platform):
    """Publish events to a topic that only the unhappy releases read."""
    kafka = platform.config.kafka
    return load.Load(kafka, f"bad.{load.EVENT_TYPE}").publish(50)


def values(platform, case):
    wanted = platform.values(serve={"enabled": False}, migrate={"enabled": False})
    wanted["config"] |= {
        "kafka": {"bootstrap_servers": case.kafka or platform.servers.kafka},
        "source": {"topic_pattern": r"bad\..+", "topic_prefix": "bad."},
        "delivery": platform.delivery()
        | {name: f"{case.name}-{name}" for name in ("attempts_topic", "dead_letter_topic", "rejected_topic", "retries_topic")},
        "batch": {"ticks_topic": f"{case.name}-ticks"},
        "retry": {"ticks_topic": f"{case.name}-retry-ticks"},
    }
    wanted["secrets"] |= case.secrets
    small = {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "3Gi"}}
    wanted["drivers"]["all"] = {"resources": small}
    return wanted


def said(of):
    """Every line that an operator finds: the pod's log, the one of its former container, and its events."""
    lines = of.log("driver").splitlines()
    for pod in of.pods("driver"):
        previous = kubectl.run("logs", "--namespace", NAMESPACE, release.name(pod), "--previous", check=False)
        lines += previous.stdout.splitlines()
        chosen = f"involvedObject.name={release.name(pod)}"
        found = kubectl.get("events", "--namespace", NAMESPACE, "--field-selector", chosen)["items"]
        lines += [str(event.get("message", "")) for event in found]
    return lines


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_one_line_names_it_and_nothing_is_consumed(installed, unhappy, case):
    releases, ids = unhappy
    of = releases[case.name]

    def names_it(lines):
        return any(all(piece in line for piece in case.says) for line in lines)

    release.eventually(lambda: said(of), names_it, within_s=NAMED_WITHIN_S)
    assert not of.ready("driver")
    assert installed.arrived.missing(ids) == ids
