"""One driver for each lane of a checkpoint."""

import contextlib
import os
import subprocess
import sys

import pytest

from delivery import errors
from delivery.stages.checkpoint_lock import file_lock

TAKES = (
    "import sys; from delivery.stages.checkpoint_lock import file_lock;"
    "file_lock.acquire(sys.argv[1], sys.argv[2:]); print('taken', flush=True); input()"
)


@contextlib.contextmanager
def running(folder, *lanes):
    """A process that has claimed the lanes, until it is killed."""
    command = [sys.executable, "-c", TAKES, str(folder), *lanes]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ, text=True) as other:
        try:
            assert other.stdout.readline() == "taken\n"
            yield other
        finally:
            other.kill()


def test_a_lane_of_another_process_is_refused_and_other_lanes_run(tmp_path):
    with running(tmp_path / "new", "direct", "retry") as other:
        with pytest.raises(
            errors.CheckpointInUse, match=rf"lane retry .*new is in use by another job .*\(process {other.pid} on"
        ):
            file_lock.acquire(str(tmp_path / "new"), ["batch", "retry"])
        file_lock.acquire(str(tmp_path / "elsewhere"), ["direct"])


@pytest.mark.parametrize("url", ["file://{}", "file:{}"])
def test_a_folder_given_as_a_url_is_locked_too(tmp_path, url):
    """Regression: a checkpoint `file:///path` got no lock, so two drivers could run one lane."""
    with running(tmp_path, "direct"), pytest.raises(errors.CheckpointInUse):
        file_lock.acquire(url.format(tmp_path), ["direct"])


def test_what_a_killed_process_had_claimed_is_free(tmp_path):
    with running(tmp_path, "direct") as other:
        other.kill()
        other.wait()
        file_lock.acquire(str(tmp_path), ["direct"])


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(errors.SettingsError, match=r"file/direct\.lock cannot be written .*: set spark\.checkpoint to"):
        file_lock.acquire(str(tmp_path / "file"), ["direct"])


def test_a_folder_on_a_full_disk_is_named(tmp_path, monkeypatch):
    def refused(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.pwrite", refused)
    with pytest.raises(errors.SettingsError, match=r"direct\.lock cannot be written \(No space left on device\)"):
        file_lock.acquire(str(tmp_path), ["direct"])


def test_a_folder_without_locks_is_used_and_the_log_says_so(tmp_path, monkeypatch, caplog):
    def refused(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", refused)
    file_lock.acquire(str(tmp_path), ["direct"])
    assert "direct.lock cannot be locked (No locks available)" in caplog.text


def test_a_checkpoint_elsewhere_than_in_a_folder_is_left_to_spark():
    file_lock.acquire("s3a://bucket/checkpoint", ["direct"])
