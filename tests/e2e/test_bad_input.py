"""A job that cannot work says why in one line, stays unready, and consumes nothing."""

import urllib.error
import urllib.request

import orjson
import pytest

from fanout.local import kafka as local_kafka
from fanout.local import stack
from subscriptions_db import connect
from tests.e2e.conftest import JOB_TIMEOUT_S, assert_eventually

pytestmark = pytest.mark.e2e


def readiness(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, orjson.loads(exc.read())["reason"]
    except OSError:
        return 0


def test_an_older_schema_and_then_a_wrong_key_ring_are_named_and_nothing_is_consumed(platform):
    """One job, one story: 1. the registry lacks the newest migration; 2. it is there, and the ring opens nothing."""
    platform.migrate()
    platform.register([{}])
    platform.publish(1)
    with connect.connect(platform.config.database) as connection:
        [newest] = connection.execute("delete from migrations where name = (select max(name) from migrations) returning *")
        platform.keys = {"ring": {"test": stack.new_key()}}
        port = local_kafka.free_port()
        job = platform.start("--lanes", "direct", metrics={"port": port})
        lacks = f"registry not read: the registry lacks {newest['name']}: run `fanout db migrate`"
        assert_eventually(platform.log, lambda log: lacks in log, within_s=90)
        assert readiness(port) == (503, "holding: the registry was not read yet")

        connection.execute("insert into migrations (name, sha256) values (%(name)s, %(sha256)s)", newest)
    assert job.wait(JOB_TIMEOUT_S) == 2
    last = platform.log().rstrip().splitlines()[-1]
    assert last.startswith("fanout: setting keys.ring does not fit the registry: nothing opens that was sealed with key test")
    assert not platform.received
    assert not list((platform.folder / "checkpoint" / "direct").glob("commits/[0-9]*"))
