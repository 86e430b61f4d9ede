"""This version continues with the state and topics of an earlier version of the platform."""

import subprocess
from pathlib import Path

import pytest

from delivery.config import plan_builder
from fanout.admin import registry_commands
from fanout.local import kafka_server as local_kafka
from subscriptions_db.manifest import manifest
from subscriptions_db.postgres import connect
from tests.e2e.conftest import assert_eventually, metric
from tests.support import golden
from tests.support.reading import blocks

pytestmark = pytest.mark.e2e
DATA = Path(__file__).parent / "data"
NEWEST = DATA / "retry-index-2.zip"
OLDER = sorted(set(DATA.glob("*.zip")) - {NEWEST})
"""Each archive costs the gate some 20 CPU seconds. Unit tests show that each older format can be read."""


@pytest.mark.parametrize(
    "path", [NEWEST, *(pytest.param(path, marks=pytest.mark.slow) for path in OLDER)], ids=lambda path: path.stem
)
def test_state_of_an_earlier_version_is_delivered_once_and_as_by_that_version(platform, path):
    left = golden.Golden(path)
    platform.name = golden.NAME
    at_this_receiver = [
        endpoint | {"url": f"{platform.receiver.url}/{endpoint['id']}"} for endpoint in left.registry["endpoints"]
    ]
    registry = manifest.check(left.registry | {"endpoints": at_this_receiver}, plan_builder.guard_of(platform.config.delivery))
    registry_commands.apply_manifest(platform.config, registry)
    with connect.connect(platform.config.database) as connection:
        connection.execute("update endpoints set status = 'active'")
    left.restore(platform)
    [moved] = [block for block in blocks("docs/operations.md", "sh") if "_metadata" in block]
    subprocess.run(["/bin/sh", "-ec", moved.replace("/mnt/fanout", str(platform.folder))], check=True)

    port = local_kafka.free_port()
    job = platform.start(metrics={"port": port}, **golden.SHARDS)

    def delivered():
        assert job.poll() in {None, 0}, platform.log()
        return list(map(golden.taken, platform.received))

    assert_eventually(delivered, lambda got: len(got) >= len(left.delivered))
    for lane in ("batch", "retry"):
        waits = f'pending_events{{lane="{lane}"}}'
        assert_eventually(lambda waits=waits: metric(port, waits), lambda count: count == 0)
    platform.publish(1, first=100, account="a")
    assert_eventually(delivered, lambda got: any(request.endpoint == "well" for request in got))
    assert platform.stop(job) == 0, platform.log()

    of_then = [request for request in delivered() if request.events != ["e100"]]
    assert sorted(of_then) == sorted(left.delivered)
    assert in_order(of_then) == in_order(left.delivered)
    assert all(request.is_verified for request in platform.received)
    platform.assert_adds_up()


def in_order(delivered):
    return [request.events for request in delivered if request.endpoint == "in-order"]
