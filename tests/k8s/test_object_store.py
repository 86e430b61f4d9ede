"""A checkpoint on an S3-compatible store: everything that reads or writes one works there, and a killed driver loses nothing.

`make test-k8s` runs these tests; `make test` leaves them out.
"""

import collections
import shutil

import orjson
import pytest

from delivery import errors
from delivery.config import settings
from delivery.stages.checkpoint import object_store, recovery, shards
from delivery.stages.lanes import session
from tests.e2e.conftest import Platform, assert_eventually
from tests.e2e.test_by_hand import fanout
from tests.e2e.test_executors import cluster  # noqa: F401  # a fixture
from tests.k8s import s3
from tests.spark.test_checkpoints import Topic

pytestmark = [
    pytest.mark.k8s,
    pytest.mark.timeout(1200),
    # py4j leaves its sockets for the garbage collector to close.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    server = s3.Store(tmp_path_factory.mktemp("store"))
    server.start()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("AWS_SHARED_CREDENTIALS_FILE", str(server.credentials))
        patched.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield server
    server.stop()


@pytest.fixture(scope="module")
def spark(store, jars):
    url = f"s3a://{s3.BUCKET}/any"
    config = settings.SparkSettings(master="local[2]", driver_memory="1g", checkpoint=url, conf=store.conf)
    started = session.start(config, session.Libraries(connector=jars.connector, store=jars.store))
    yield shards.session(started, 4)
    started.stop()


@pytest.fixture
def topic(spark, kafka, request):
    return Topic(spark, kafka, s3.Url(f"s3a://{s3.BUCKET}/{request.node.name}"))


def folder(store, request, lane="direct"):
    return store.bucket / request.node.name / "checkpoint" / lane


def test_accepted_loss_moves_the_checkpoint_on_the_store(topic):
    topic.publish(b"0")
    topic.run("checkpoint")
    topic.publish(b"1", b"2", b"3")
    topic.break_off("checkpoint")
    topic.publish(b"4")
    topic.expire(3)
    [loss] = topic.accept_loss("checkpoint")
    assert (loss.first, loss.last) == (1, 2)
    topic.run("checkpoint")
    assert topic.taken == [b"0", b"3", b"4"]


def test_missing_offsets_on_the_store_are_refused(topic, spark, store, request):
    for value in (b"0", b"1"):
        topic.publish(value)
        topic.run("checkpoint")
    assert recovery.newest(spark, f"s3a://{s3.BUCKET}/{request.node.name}/checkpoint/direct") == (1, 1)
    (folder(store, request) / "offsets" / "1").unlink()
    with pytest.raises(errors.LaneFailed, match=r"direct is damaged: offsets/1 is gone, .* restore a backup"):
        topic.run("checkpoint")
    assert topic.taken == [b"0", b"1"]


def test_uncommitted_micro_batch_on_the_store_is_found(topic, spark, request):
    topic.publish(b"0")
    topic.break_off("checkpoint")
    found = recovery.uncommitted(spark, f"s3a://{s3.BUCKET}/{request.node.name}/checkpoint/direct")
    assert found is not None
    assert found.batch_id == 0


def test_other_number_of_shards_is_refused_on_the_store(topic, spark, request):
    topic.publish(b"0")
    topic.run("checkpoint")
    checkpoint = f"s3a://{s3.BUCKET}/{request.node.name}/checkpoint"
    shards.require_kept(spark, checkpoint, "direct", 4)
    with pytest.raises(errors.SettingsError, match=r"has 4 shards: set direct\.shards to 4"):
        shards.require_kept(spark, checkpoint, "direct", 8)


def test_restored_copy_of_the_objects_goes_on(topic, store, request):
    topic.publish(b"0")
    topic.run("checkpoint")
    shutil.copytree(store.bucket / request.node.name, store.bucket / "backup")
    shutil.rmtree(store.bucket / request.node.name)
    shutil.copytree(store.bucket / "backup", store.bucket / request.node.name)
    topic.publish(b"1")
    topic.run("checkpoint")
    assert topic.taken == [b"0", b"1"]


def test_probe_of_the_store_leaves_nothing(spark, store):
    object_store.require_usable(spark, f"s3a://{s3.BUCKET}/probed")
    assert not list((store.bucket).glob("probed/.doctor*"))


def test_probe_of_a_missing_bucket_says_so(spark):
    with pytest.raises(errors.SettingsError, match=r"s3a://nowhere/all cannot be used \(.*bucket.*AWS_SHARED_CREDENTIALS_FILE"):
        object_store.require_usable(spark, "s3a://nowhere/all")


@pytest.fixture
def platform(kafka, database, tmp_path):
    made = Platform(kafka, database, tmp_path)
    with made.receiving():
        yield made
        made.close()


def on_the_store(platform, store):
    return {
        "source": {"max_events_per_batch": 300},
        "retry": {"probe_interval_s": 0.5, "max_probe_interval_s": 1},
        "spark": {"checkpoint": f"s3a://{s3.BUCKET}/{platform.name}", "driver_memory": "1g", "conf": store.conf},
    }


def test_driver_killed_in_all_lanes_goes_on_from_the_store(platform, store):
    """Direct, batch and retry lane; SIGKILL in the middle; a new driver has nothing but the store, and loses nothing."""
    platform.migrate()
    platform.register([{}], retry={"schedule_s": [1, 1, 1, 1]})
    batch = {"mode": "batch", "batch": {"max_events": 10, "max_wait_s": 2}}
    platform.register([{"id": "b0", "endpoint": "ep2"}], endpoints=("ep2",), **batch)
    platform.statuses["ep1"] = 503
    ids = platform.publish(100)
    job = platform.start("--lanes", "direct,batch,retry", **on_the_store(platform, store))
    assert_eventually(lambda: len(platform.received), lambda count: count > 20, within_s=400)
    platform.statuses["ep1"] = 200
    ids += platform.publish(3000, first=100)
    assert_eventually(lambda: platform.accepted("ep1"), lambda got: len(got) >= 700, within_s=400)
    platform.kill(job)
    before = len(set(platform.accepted("ep1")))
    assert before < len(ids)

    job = platform.start("--lanes", "direct,batch,retry", **on_the_store(platform, store))
    for endpoint in ("ep1", "ep2"):
        assert_eventually(lambda at=endpoint: set(platform.accepted(at)), lambda got: got == set(ids), within_s=400)
    assert platform.stop(job) == 0, platform.log()
    platform.assert_adds_up()
    repeated = [event_id for event_id, count in collections.Counter(platform.accepted("ep1")).items() if count > 1]
    assert len(repeated) <= 300
    assert {path.name for path in (store.bucket / platform.name).iterdir()} == {"direct", "batch", "retry"}
    assert not (platform.folder / "checkpoint").exists()


def test_executors_of_their_own_keep_the_state_on_the_store(platform, store, cluster):  # noqa: F811
    """Executors get the client of S3 from the driver, and the credentials from their environment."""
    platform.migrate()
    platform.register([{}], mode="batch", batch={"max_events": 10, "max_wait_s": 1})
    ids = platform.publish(100)
    spark = on_the_store(platform, store)["spark"]
    spark |= {"master": "local-cluster[1,2,1024]", "conf": cluster["conf"] | store.conf}
    job = platform.start("--lanes", "batch", spark=spark)
    assert_eventually(lambda: set(platform.accepted("ep1")), lambda got: got == set(ids), within_s=400)
    assert platform.stop(job) == 0, platform.log()
    assert list((store.bucket / platform.name / "batch" / "state").rglob("*.changelog"))
    platform.assert_adds_up()


def test_doctor_probes_the_store_and_names_wrong_credentials(platform, store, monkeypatch):
    platform.migrate()
    platform.configure(**on_the_store(platform, store))

    def finding():
        findings = orjson.loads(fanout(platform.folder, "doctor", "--json", check=False).stdout)
        [found] = [finding for finding in findings if finding["subject"] == "checkpoint"]
        return found

    found = finding()
    assert (found["is_fine"], "was written, read and deleted" in found["text"]) == (True, True), found
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(store.credentials_of("wrong", "not the secret")))
    found = finding()
    assert (found["is_fine"], "cannot be used" in found["text"]) == (False, True), found
    assert "not the secret" not in str(found)
