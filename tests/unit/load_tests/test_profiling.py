"""A profile of a load test: CPU by thread, samples by component, and the pinned profiler."""

import hashlib
import subprocess
import sys
import threading
import time

import psutil
import pytest

from delivery import errors
from load_tests.profiling import async_profiler, components, cpu_times


def test_a_stack_belongs_to_its_innermost_frame_that_has_a_component():
    stacks = [
        "start_thread;org/apache/spark/executor/Executor$TaskRunner.run;org/apache/kafka/Consumer.poll;java/util/HashMap.get 6",
        "start_thread;org/apache/spark/executor/Executor$TaskRunner.run;java/util/HashMap.get 3",
        "start_thread;java/lang/Thread.run 1",
    ]
    assert components.shares(stacks, components.JVM) == {"Kafka's client": 0.6, "scheduler": 0.3, "other": 0.1}


def test_samples_of_the_standard_library_count_for_its_caller():
    stacks = [
        "main (worker.py:1);run (asyncio/runners.py:1);write (delivery/webhooks/http/connection.py:3);send (socket.py:9) 3",
        "main (worker.py:1);run (asyncio/runners.py:1) 1",
    ]
    assert components.shares(stacks, components.PYTHON) == {"HTTP client": 0.75, "event loop": 0.25}


def test_no_samples_give_no_shares():
    assert components.shares([], components.PYTHON) == {}


def test_cpu_counts_for_the_group_of_threads_whose_names_differ_in_a_number():
    before = cpu_times.CpuTimes(2.0, {1: ("GC Thread#0", 1.0), 2: ("rdk:broker1001", 0.5), 5: ("ended", 0.25)})
    after = cpu_times.CpuTimes(
        6.25, {1: ("GC Thread#0", 1.5), 2: ("rdk:broker1001", 0.5), 3: ("GC Thread#1", 0.25), 4: ("main", 2.0)}
    )
    assert cpu_times.spent(before, after) == {"GC Thread": 0.75, "rdk:broker": 0.0, "main": 2.0, cpu_times.ENDED: 1.5}


def test_a_thread_that_works_has_more_cpu_seconds_than_before():
    before, number = cpu_times.read(psutil.Process()), threading.get_native_id()
    until = time.thread_time() + 0.05
    while time.thread_time() < until:
        pass
    after = cpu_times.read(psutil.Process())
    assert after.threads[number][1] - before.threads[number][1] >= 0.03
    assert after.total_s - before.total_s >= 0.03


def test_a_process_that_has_ended_has_no_cpu_seconds():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    process = psutil.Process(ended.pid)
    ended.wait()
    assert cpu_times.read(process) == cpu_times.CpuTimes()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "profiler.jar"
    path.write_bytes(b"content")
    return path


def test_the_profiler_is_downloaded_once_if_it_is_the_pinned_one(file, tmp_path):
    wanted = async_profiler.Download(file.as_uri(), hashlib.sha256(b"content").hexdigest())
    cached = async_profiler.ensure(wanted, tmp_path / "cache")
    assert cached.read_bytes() == b"content"
    file.unlink()
    assert async_profiler.ensure(wanted, tmp_path / "cache") == cached


def test_another_file_than_the_pinned_one_is_refused(file, tmp_path):
    wanted = async_profiler.Download(file.as_uri(), hashlib.sha256(b"another").hexdigest())
    with pytest.raises(errors.LocalStackError, match="is not the file that this project pins, so nothing is profiled"):
        async_profiler.ensure(wanted, tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*"))


def test_without_a_network_the_message_says_how_to_go_on(tmp_path):
    wanted = async_profiler.Download((tmp_path / "nothing.jar").as_uri(), "0" * 64)
    with pytest.raises(errors.LocalStackError, match="check the network"):
        async_profiler.ensure(wanted, tmp_path / "cache")
