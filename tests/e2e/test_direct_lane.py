"""A job with the direct lane alone: what ends it, and what its next start delivers."""

import subprocess
import sys

import pytest

from delivery.stages.kafka import topics
from fanout.local import kafka as local_kafka
from fanout.local import stack
from subscriptions_db.postgres import connect
from tests.e2e.conftest import JOB_TIMEOUT_S, assert_eventually, metric

pytestmark = pytest.mark.e2e


def test_what_cannot_be_recorded_is_not_committed_and_is_delivered_again(platform):
    """The dead-letter topic refuses the record: the batch fails, and no failure is forgotten."""
    platform.statuses["ep1"] = 500
    platform.register([{}])
    [event_id] = platform.publish(1)
    dead_letters = platform.config.delivery.dead_letter_topic
    topics.ensure(platform.config.kafka, [dead_letters], 1, {"max.message.bytes": "300"})
    assert platform.start("--once", "--lanes", "direct", spark={"master": "local[2]"}).wait(JOB_TIMEOUT_S) != 0
    assert not platform.ledger().dead_letters
    assert platform.log().rstrip().splitlines()[-1].startswith("fanout: lane direct ended, and all lanes stop: ")

    platform.set_topic(dead_letters, "max.message.bytes", "1048576")
    platform.run_once("--lanes", "direct")

    assert list(platform.ledger().dead_letters) == [(event_id, "s0")]
    platform.assert_adds_up()


def test_a_job_with_the_wrong_key_ring_ends_and_delivers_nothing(platform):
    """One job, one story, because its start takes most of the time.

    1. The registry lacks the newest migration: the job says so, stays unready, and waits.
    2. The migration is there, and the ring opens nothing: the job says so, and ends.
    3. The next job has the right ring: everything is delivered once.
    """
    platform.register([{}])
    platform.publish(1)
    with connect.connect(platform.config.database) as connection:
        [newest] = connection.execute("delete from migrations where name = (select max(name) from migrations) returning *")
        metrics = {"port": local_kafka.free_port()}
        job = platform.start("--lanes", "direct", keys={"ring": {"test": stack.new_key()}}, metrics=metrics)
        lacks = f"trying again: the registry lacks the migrations {newest['name']}, and nothing was changed"
        assert_eventually(platform.log, lambda log: lacks in log, within_s=90)
        assert metric(metrics["port"], 'ready{lane="direct"}') == 0
        connection.execute("insert into migrations (name, sha256) values (%(name)s, %(sha256)s)", newest)
    assert job.wait(JOB_TIMEOUT_S) == 2
    assert platform.log().rstrip().splitlines()[-1].startswith("fanout: setting keys.ring does not fit the registry: ")
    assert not platform.received
    platform.run_once("--lanes", "direct")
    assert len(platform.accepted()) == 1


def test_the_command_says_in_one_line_what_is_wrong(tmp_path):
    environ = {"FANOUT_KAFKA_BOOTSTRAP_SERVER": "x"}
    done = subprocess.run(
        [sys.executable, "-m", "fanout.cli.main", "run"], env=environ, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "did you mean kafka.bootstrap_servers?" in done.stderr
