"""A disk that is full ends the job by its name; nothing is lost, and no endpoint is blamed."""

import contextlib
import re
import shutil
import subprocess

import pytest

from subscriptions_db.postgres import connect
from tests.e2e.conftest import JOB_TIMEOUT_S, assert_eventually
from tests.e2e.test_batch_lane import in_batches, log

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


class Disk:
    """A disk that is soon full."""

    def __init__(self, folder):
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self):
        with self._ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))

    def empty(self):
        self._ballast.unlink()


@contextlib.contextmanager
def mounted(folder):
    """Mount a disk for a test. In the end it is taken away from whatever still uses it."""
    folder.mkdir()
    mount = [shutil.which("mount") or "mount", "-t", "tmpfs", "-o", "size=64m", "fanout-test", folder]
    try:
        subprocess.run(mount, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as failure:
        pytest.skip(f"no disk can be mounted here: {getattr(failure, 'stderr', None) or failure}")
    try:
        yield Disk(folder)
    finally:
        subprocess.run([shutil.which("umount"), "--lazy", folder], check=True)


@pytest.fixture
def disks(tmp_path):
    """Disks for Spark's local folders and for the checkpoint. They outlast the jobs: the fixture `platform` ends before."""
    with mounted(tmp_path / "local") as local, mounted(tmp_path / "kept") as kept:
        yield local, kept


def test_a_full_disk_ends_the_lane_and_names_its_folder_and_a_restart_continues(disks, platform):
    """Twice in one story: 1. Spark's local folders; 2. the checkpoint."""
    local, kept = disks
    on_them = {"checkpoint": str(kept.folder), "conf": {"spark.local.dir": str(local.folder)}}
    settings = {"spark": on_them, "batch": {"shards": 2}}
    platform.register([{}], **in_batches(max_events=5, max_wait_s=1))
    ids = []

    def publish(count):
        ids.extend(platform.publish(count, first=len(ids)))

    publish(5)
    for disk, setting in [(local, "spark.local.dir"), (kept, "spark.checkpoint")]:
        job = platform.start("--lanes", "batch", **settings)
        assert_eventually(lambda: sorted(platform.accepted()), lambda got: got == sorted(ids))
        disk.fill()
        publish(20)
        assert job.wait(JOB_TIMEOUT_S) == 1
        last = platform.log().rstrip().splitlines()[-1]
        ended = "fanout: lane batch ended, and all lanes stop: "
        expected = rf"{ended}.*No space left on device; .*\b\d MiB in {disk.folder} \({setting}\)"
        assert re.search(expected, last), "of 64 MiB: Spark has removed some of its own by the time it is asked"
        assert sorted(platform.accepted()) == sorted(ids[:-20])
        disk.empty()

    platform.run_once("--lanes", "batch", **settings)
    assert sorted(platform.accepted()) == sorted(ids)
    assert {(entry["kind"], entry["error_class"]) for entry in log(platform)} == {("batch_attempt", None)}
    with connect.connect(platform.config.database) as connection:
        assert connection.execute("select status from endpoints").fetchall() == [{"status": "active"}]
    platform.assert_adds_up()
