"""The embedded servers are real, survive a crash, and outlive nobody who started them."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import psycopg
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from delivery import errors
from delivery.config import settings, settings_loader
from delivery.stages.kafka import topics
from fanout.jvm import class_archive, jar_lock
from fanout.jvm import jars as local_jars
from fanout.local import kafka_server as local_kafka
from fanout.local import postgres_server, stack
from tests.e2e.conftest import assert_eventually

pytestmark = pytest.mark.integration


def processes_of(folder):
    """The living processes, guardians aside, that were started with a path below `folder`."""
    return {
        process.pid: process.info["name"]
        for process in psutil.process_iter(["name", "cmdline", "status"])
        if process.info["status"] != psutil.STATUS_ZOMBIE and any(str(folder) in word for word in process.info["cmdline"] or ())
    }


ANY_NAME = "Entwürfe, 東京"


@pytest.fixture
def own_kafka(jars, tmp_path):
    broker = local_kafka.EmbeddedKafka(tmp_path / ANY_NAME / "kafka", libraries=jars)
    broker.start()
    yield broker
    broker.stop()
    assert processes_of(tmp_path) == {}


def test_a_restarted_broker_has_the_records_that_it_had_confirmed(own_kafka, tmp_path):
    """In a folder of any name: once, such a broker wrote into a folder of a garbled name, and did not start again."""
    servers = own_kafka.bootstrap_servers
    topics.ensure(settings.KafkaSettings(bootstrap_servers=servers), ["kept"], 1)
    producer = Producer({"bootstrap.servers": servers})
    producer.produce("kept", b"event")
    assert producer.flush(30) == 0

    own_kafka.kill()
    own_kafka.start()

    assert own_kafka.bootstrap_servers == servers
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "test", "auto.offset.reset": "earliest"})
    consumer.subscribe(["kept"])
    try:
        assert consumer.poll(60).value() == b"event"
    finally:
        consumer.close()
    assert [path.name for path in tmp_path.iterdir()] == [ANY_NAME]


def test_a_broker_maps_the_archive_of_the_classes_that_it_starts_with(kafka):
    archive = class_archive.find(class_archive.BROKER)
    assert archive is not None, "run `fanout prepare` first, as `make test` does"
    assert str(archive) in Path(f"/proc/{kafka.pid}/maps").read_text()


def test_a_topic_exists_only_because_somebody_made_it(kafka):
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    assert admin.list_topics("nobody-made-it", timeout=30).topics["nobody-made-it"].error is not None
    assert "nobody-made-it" not in admin.list_topics(timeout=30).topics


def test_a_broker_that_cannot_start_names_its_log_and_the_log_has_the_reason(jars, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "meta.properties").write_text("version=1\ncluster.id=another\nnode.id=7\n")  # ours is node 1
    broker = local_kafka.EmbeddedKafka(tmp_path, libraries=jars)
    with pytest.raises(errors.LocalStackError, match=r"did not start.* The reason is at the end of .*broker\.log"):
        broker.start()
    assert "Stored node id 7" in (tmp_path / "broker.log").read_text()
    assert processes_of(tmp_path) == {}


def test_what_a_killed_postgres_had_committed_is_there_when_it_is_started_again(own_postgres, tmp_path):
    url = own_postgres.url
    with psycopg.connect(url) as connection:
        connection.execute("create table kept as select 1 as one")
    idle = psycopg.connect(url)  # its server process must not keep the data from being opened again

    own_postgres.kill()
    assert processes_of(tmp_path) == {}
    own_postgres.start()

    idle.close()
    with psycopg.connect(own_postgres.url) as connection:
        assert connection.execute("select one from kept").fetchone() == (1,)


def test_a_postgres_starts_anew_where_this_process_deleted_another(tmp_path):
    """Regression: load tests that start a platform for each value in one folder failed at the second value."""
    for _ in range(2):
        server = postgres_server.EmbeddedPostgres(tmp_path / "postgres")
        server.start()
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("create table rows (n int)")
        server.discard()
        shutil.rmtree(tmp_path / "postgres")


def test_a_process_with_the_pid_of_a_crashed_postgres_is_not_taken_for_it(own_postgres):
    own_postgres.kill()
    left = own_postgres._data / "postmaster.pid"
    left.write_text(left.read_text().replace(str(own_postgres.pid), str(os.getpid()), 1))
    own_postgres.start()
    with psycopg.connect(own_postgres.url) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def test_an_empty_lock_file_of_a_crash_does_not_stop_a_start(own_postgres):
    own_postgres.kill()
    (own_postgres._data / "postmaster.pid").write_text("")  # created, and not yet written: the socket's lock comes later
    for lock in own_postgres._data.glob(".s.PGSQL.*.lock"):
        lock.unlink()
    own_postgres.start()
    with psycopg.connect(own_postgres.url) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


# Ctrl-C is ignored by what a shell starts in the background, as a CI's runner may be, and by all that it starts in turn.
HOLD_A_STACK = """
import signal, sys, threading
from pathlib import Path
from fanout.local import stack
signal.signal(signal.SIGINT, signal.default_int_handler)
with stack.Stack(Path(sys.argv[1])):
    print("up", flush=True)
    threading.Event().wait()
"""


@pytest.fixture
def holder(tmp_path):
    """A process that holds a stack below `tmp_path`."""
    command = [sys.executable, "-c", HOLD_A_STACK, str(tmp_path / "root")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_server_outlives_the_process_that_started_it(holder, tmp_path, how):
    assert holder.stdout.readline() == "up\n"
    assert set(processes_of(tmp_path / "root").values()) >= {"java", "postgres"}
    holder.send_signal(how)
    holder.wait(60)
    assert_eventually(lambda: processes_of(tmp_path / "root"), lambda left: left == {})


def broker_in(root):
    return {str(pid) for pid in processes_of(root / "kafka" / "server.properties")}


def postgres_in(root):
    return {str((root / "postgres" / "postmaster.pid").resolve())}


@pytest.mark.parametrize("guarded", [broker_in, postgres_in])
def test_no_server_outlives_a_process_that_was_killed_during_the_start(holder, tmp_path, guarded):
    """Guardians once began to watch when the servers answered: what was not that far stayed for ever."""

    def is_guarded():
        commands = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
        return guarded(tmp_path / "root") & {command[-1] for command in commands if "fanout.local.guardian" in command}

    assert_eventually(is_guarded, bool)
    holder.kill()
    holder.wait(60)
    assert_eventually(lambda: processes_of(tmp_path / "root"), lambda left: left == {})


def test_the_written_settings_are_ours_alone_to_read_and_keep_their_key(tmp_path):
    path = tmp_path / "local.toml"
    rings = []
    with stack.Stack(tmp_path) as servers:
        for _ in range(2):
            stack.write_local_settings(tmp_path, servers)
            assert path.stat().st_mode & 0o777 == 0o600
            loaded = settings_loader.read({}, path, root=tmp_path)
            assert loaded.database.url.get_secret_value() == servers.postgres.url
            assert loaded.kafka.bootstrap_servers == servers.kafka.bootstrap_servers
            rings.append(loaded.keys)
            path.chmod(0o644)  # as an editor might leave it
    assert rings[0] == rings[1]
    assert processes_of(tmp_path) == {}


@pytest.fixture
def fetched(tmp_path):
    """An ivy.xml beside the jars that it stands for, and their lock."""
    ivy_file = tmp_path / "ivy.xml"
    ivy_file.write_bytes(local_jars.IVY_FILE.read_bytes())
    for name in ("connector/a-1.jar", "broker/kafka_2.13-1.jar"):
        jar = tmp_path / "lib" / name
        jar.parent.mkdir(parents=True)
        jar.touch()
    (tmp_path / "jars.lock").write_text(jar_lock.written(tmp_path / "lib"))
    marker = tmp_path / "lib" / local_jars.MARKER
    marker.write_text(hashlib.sha256(ivy_file.read_bytes()).hexdigest())
    return ivy_file


def test_jars_that_are_there_are_not_fetched_again(fetched):
    said = []
    found = local_jars.ensure(fetched, say=said.append)
    assert [jar.name for jar in (*found.connector, *found.broker)] == ["a-1.jar", "kafka_2.13-1.jar"]
    assert said == []


def test_changed_jars_are_fetched_and_a_failure_keeps_the_old_ones(fetched, monkeypatch, tmp_path):
    no_network = "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=1 -Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort=1"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Divy.default.ivy.user.dir={tmp_path}/cache {no_network}")
    fetched.write_text(fetched.read_text() + "<!-- changed -->\n")
    said = []
    with pytest.raises(errors.LocalStackError, match=r"could not be downloaded from Maven.*: check the network") as failed:
        local_jars.ensure(fetched, say=said.append)
    assert "\n" not in str(failed.value)
    assert len(said) == 1
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "cache") == ["ivy.xml", "jars.lock", "lib"]
    assert (tmp_path / "lib" / "broker" / "kafka_2.13-1.jar").is_file()


def test_the_lock_names_exactly_the_jars_that_ivy_xml_leads_to(jars):
    """The fetched folder is of this very ivy.xml: its marker says so, or it would have been fetched anew."""
    library = jars.broker[0].parents[1]
    assert (library / local_jars.MARKER).read_text() == hashlib.sha256(local_jars.IVY_FILE.read_bytes()).hexdigest()
    assert jar_lock.written(library) == (local_jars.IVY_FILE.parent / "jars.lock").read_text()
