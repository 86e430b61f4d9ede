"""A job ends by itself when it cannot go on. It logs the reason in its last line, and exits with a status above 0.

The tests share a checkpoint. Each test continues where the test before it has ended, so run the whole file. A job starts five
times:

1. The registry lacks the newest migration. When it is there, the key ring opens no secret.
2. The checkpoint cannot be written.           4. After the documented cure, a dead letter cannot be written.
3. A file of the checkpoint is cut short.      5. The dead letter can be written.
"""

import contextlib
import shutil
import subprocess
import sys
import uuid

import pytest

from delivery.stages.kafka import topics
from fanout.local import kafka_server as local_kafka
from fanout.local import stack
from subscriptions_db.postgres import connect
from tests.e2e.conftest import JOB_TIMEOUT_S, Platform, assert_eventually, metric
from tests.support import databases
from tests.support.reading import blocks

pytestmark = pytest.mark.e2e


class Job:
    """A job with the direct lane that runs until something ends it."""

    def __init__(self, platform, **overrides):
        self._port = local_kafka.free_port()
        self.process = platform.start("--lanes", "direct", metrics={"port": self._port}, **overrides)

    def metric(self, name):
        return metric(self._port, f'{name}{{lane="direct"}}')


@pytest.fixture(scope="module")
def shared(kafka, postgres, tmp_path_factory):
    """Return a platform with an event for `ep1`, and with too little room in the dead-letter topic for a dead letter."""
    database = databases.create_migrated(postgres, f"test_{uuid.uuid4().hex[:12]}")
    platform = Platform(kafka, database, tmp_path_factory.mktemp("endings"))
    with platform.receiving(), contextlib.closing(platform):
        platform.statuses["refuses"] = 500
        platform.register([{}, {"endpoint": "refuses", "event_type": "refused"}], endpoints=("ep1", "refuses"))
        platform.create_topic("refused")
        topics.ensure(platform.config.kafka, [platform.config.delivery.dead_letter_topic], 1, {"max.message.bytes": "300"})
        platform.publish(1)
        yield platform


@pytest.fixture(scope="module")
def failed_before(request):
    """Return the number of tests of other files that have failed."""
    return request.session.testsfailed


@pytest.fixture
def platform(shared, failed_before, request):
    if request.session.testsfailed > failed_before:
        pytest.skip("a test before this one has failed, and has left the checkpoint in another state")
    return shared


@pytest.fixture(scope="module")
def checkpoint(shared):
    return shared.folder / "checkpoint"


@pytest.fixture(scope="module")
def cured(shared, checkpoint):
    """Return a job that was started after the documented cure of the checkpoint."""
    [cure] = [block for block in blocks("docs/operations.md", "sh") if "newest" in block]
    subprocess.run(["/bin/sh", "-ec", cure.replace("/var/lib/fanout/checkpoint", str(checkpoint))], check=True)
    # With this master, Spark gives up after one failure of a task.
    return Job(shared, spark={"master": "local[2]"})


def last_line(platform):
    return platform.log().rstrip().splitlines()[-1]


def test_a_job_with_the_wrong_key_ring_ends_and_delivers_nothing(platform):
    """Before that, the registry lacks the newest migration: the job says so, stays unready, and waits."""
    with connect.connect(platform.config.database) as connection:
        [newest] = connection.execute("delete from migrations where name = (select max(name) from migrations) returning *")
        job = Job(platform, keys={"ring": {"test": stack.new_key()}})
        lacks = f"read or changed: the registry lacks the migrations {newest['name']}, and nothing was changed"
        assert_eventually(platform.log, lambda log: lacks in log)
        assert job.metric("ready") == 0
        connection.execute("insert into migrations (name, sha256) values (%(name)s, %(sha256)s)", newest)
    assert job.process.wait(JOB_TIMEOUT_S) == 2
    assert last_line(platform).startswith("fanout: setting keys.ring does not fit the registry: ")
    assert not platform.received


def test_a_failed_checkpoint_write_stops_the_job_before_it_sends(platform, checkpoint):
    """As with a full disk: a file stands where Spark wants a folder. With the right key ring, the job has delivered once."""
    job = Job(platform)
    assert_eventually(platform.accepted, lambda got: got == ["e0"])
    assert_eventually(lambda: job.metric("records_total"), lambda got: got == 1)
    offsets = checkpoint / "direct" / "offsets"
    kept = shutil.move(offsets, offsets.with_name("kept"))
    try:
        offsets.write_text("in the way")
        platform.publish(1, first=1)
        assert job.process.wait(JOB_TIMEOUT_S) == 1
        assert platform.accepted() == ["e0"]
        assert last_line(platform).startswith("fanout: lane direct ended, and all lanes stop: ")
    finally:
        offsets.unlink(missing_ok=True)
        shutil.move(kept, offsets)


def test_a_checkpoint_file_cut_short_stops_the_job_before_it_sends(platform, checkpoint):
    newest = max((checkpoint / "direct" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.write_text("")
    assert platform.start("--once", "--lanes", "direct").wait(JOB_TIMEOUT_S) == 1
    assert platform.accepted() == ["e0"]


def test_after_the_documented_cure_the_removed_micro_batch_runs_again(platform, cured):
    assert_eventually(lambda: sorted(platform.accepted()), lambda got: got == ["e0", "e0", "e1"])
    assert len({request.webhook_id for request in platform.received}) == 2
    assert_eventually(lambda: cured.metric("records_total"), lambda got: got == 2)


def test_what_cannot_be_recorded_is_not_committed_and_is_delivered_again(platform, cured):
    """The dead-letter topic refuses the record: the micro-batch fails, and no failure is forgotten."""
    [event_id] = platform.publish(1, event_type="refused", first=2)
    assert cured.process.wait(JOB_TIMEOUT_S) == 1
    assert not platform.ledger().dead_letters
    assert last_line(platform).startswith("fanout: lane direct ended, and all lanes stop: ")

    platform.set_topic(platform.config.delivery.dead_letter_topic, "max.message.bytes", "1048576")
    platform.run_once("--lanes", "direct")

    assert list(platform.ledger().dead_letters) == [(event_id, "s1")]
    assert sorted(platform.accepted()) == ["e0", "e0", "e1"]
    platform.assert_adds_up()


def test_the_command_says_in_one_line_what_is_wrong(tmp_path):
    environ = {"FANOUT_KAFKA_BOOTSTRAP_SERVER": "x"}
    done = subprocess.run(
        [sys.executable, "-m", "fanout.cli.main", "run"], env=environ, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "did you mean kafka.bootstrap_servers?" in done.stderr
