"""Fixtures for everybody: the real servers, started once for a test run and only when a test asks."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import uuid
from pathlib import Path

import hypothesis
import psutil
import psycopg
import pytest
from xdist.scheduler import loadscope

from fanout.jvm import jars as local_jars
from fanout.local import kafka_server as local_kafka
from fanout.local import postgres_server as local_postgres
from tests.support import databases, shared_broker

IN_MEMORY = pytest.StashKey[Path]()
"""The folder of this run in MEMORY."""
HAS_PASSED = pytest.StashKey[bool]()
SERVERS = pytest.StashKey[contextlib.ExitStack]()
"""Servers that end with this process of pytest."""

ONE_JOB = (
    "tests/e2e/test_endings.py",
    "tests/e2e/test_one_job.py",
    "tests/e2e/test_one_run.py",
    "tests/e2e/test_retry_lane.py",
)
"""Files whose tests share a job, or the checkpoint of several jobs."""


MEMORY = Path("/dev/shm")  # noqa: S108  # Linux keeps the files of this folder in memory
MEMORY_BYTES = 8 * 2**30
"""Bytes that must be free for the tests' files to be in memory. `make test` needs 1 GiB there, and its processes 5 GiB."""


def pytest_configure(config):
    """Keep the tests' files in memory where there is room: a new database then takes 20 ms of CPU, and 130 on a disk.

    The files of a run that failed stay until the next run.
    """
    config.stash[SERVERS] = contextlib.ExitStack()
    if "TMPDIR" in os.environ or config.option.basetemp or not _has_room_in_memory():
        return
    for earlier in MEMORY.glob("fanout-tests-*"):
        if not psutil.pid_exists(int(earlier.name.rpartition("-")[2])):
            shutil.rmtree(earlier, ignore_errors=True)
    folder = MEMORY / f"fanout-tests-{os.getpid()}"
    folder.mkdir(mode=0o755)
    os.environ["TMPDIR"] = str(folder)  # for the workers, and for all that they start
    tempfile.tempdir = None  # read TMPDIR again
    config.stash[IN_MEMORY] = folder


def pytest_unconfigure(config):
    if config.stash.get(HAS_PASSED, False) and (folder := config.stash.get(IN_MEMORY, None)):
        shutil.rmtree(folder, ignore_errors=True)


def pytest_sessionfinish(session, exitstatus):
    # Not by a fixture: the wait for other workers would count for the timeout of the last test.
    session.config.stash[SERVERS].close()
    session.config.stash[HAS_PASSED] = exitstatus == pytest.ExitCode.OK


def _has_room_in_memory():
    if not os.access(MEMORY, os.W_OK) or os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:  # some tests write programs
        return False
    try:
        container = int(Path("/sys/fs/cgroup/memory.max").read_text())
    except (OSError, ValueError):  # no control group, or one without a limit
        container = MEMORY_BYTES
    return min(shutil.disk_usage(MEMORY).free, psutil.virtual_memory().available, container) >= MEMORY_BYTES


class Scheduling(loadscope.LoadScopeScheduling):
    """Give a worker the tests of a file together, as they share fixtures, and all that use the Spark session.

    Tests of the whole platform share no fixture but the servers, and take the longest: each is given alone. Those of a file in
    `ONE_JOB` are given together.
    """

    def _split_scope(self, nodeid):
        file, _, _ = nodeid.partition("::")
        folder = file.split("/")[1]
        return file if file in ONE_JOB else {"e2e": nodeid, "spark": folder}.get(folder, file)


# No deadline for an example: a busy machine takes longer, which is no fault of the code under test.
hypothesis.settings.register_profile("fanout", deadline=None)
hypothesis.settings.load_profile("fanout")


LONGEST_FIRST = (
    "tests/spark/",
    *ONE_JOB,
    "tests/e2e/test_realtime_lane.py",
    "tests/integration/test_local_stack.py",
    "tests/e2e/",
    "tests/integration/archive/test_archiving.py",
    "tests/integration/api/test_fuzzing.py",
    "tests/integration/test_dead_letters.py",
    "tests/integration/api/test_isolation.py",
)
"""Folders and files whose tests take longest together. They begin first, so that no worker waits for one of them at the end."""


def pytest_collection_modifyitems(items):
    def place(item):
        return next((place for place, path in enumerate(LONGEST_FIRST) if item.nodeid.startswith(path)), len(LONGEST_FIRST))

    items.sort(key=place)  # stable: otherwise as written


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return Scheduling(config, log)


@pytest.fixture(autouse=True)
def _logging_as_it_was():
    """A worker's first task says for its process what is logged, and where to: here other tests come after it."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


@pytest.fixture(scope="session")
def jars():
    return local_jars.ensure()


@pytest.fixture(scope="session")
def kafka(jars, tmp_path_factory, request):
    """A broker that all workers of this run share. Each test names its topics by itself."""
    folder = tmp_path_factory.getbasetemp()
    sharing = shared_broker.running(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder, jars)
    return request.config.stash[SERVERS].enter_context(sharing)


@pytest.fixture
def own_kafka(jars, tmp_path):
    """A broker of this test's own, for what it does to it."""
    broker = local_kafka.EmbeddedKafka(tmp_path / "kafka", libraries=jars)
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture(scope="session")
def postgres():
    with _postgres() as server:
        yield server


@pytest.fixture
def database(postgres):
    """The URL of a database of this test's own, with the newest schema."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    yield databases.create_migrated(postgres, name)
    databases.drop(postgres, name)


@pytest.fixture
def empty_database(postgres):
    """The URL of a database of this test's own, without a schema."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    postgres.create_database(name)
    yield postgres.url_of(name)
    databases.drop(postgres, name)


@pytest.fixture
def own_postgres():
    """A Postgres of this test's own, for what it does to it."""
    with _postgres() as server:
        yield server


@contextlib.contextmanager
def _postgres():
    """Start one on a folder of its own: another run of pytest shuts Postgres, another user, out of what is below pytest's."""
    with tempfile.TemporaryDirectory(prefix="fanout-postgres-", ignore_cleanup_errors=True) as folder:
        server = local_postgres.EmbeddedPostgres(Path(folder) / "data")
        server.start()
        with psycopg.connect(server.url, autocommit=True) as connection:
            # Only a crash of the machine could lose what the system has not yet written to the disk.
            connection.execute("alter system set fsync = off")
            connection.execute("select pg_reload_conf()")
        yield server
        server.discard()
