"""Executors in processes of their own, as in a cluster: what the driver's process holds is not at hand for them.

Spark's standalone master and its workers on this machine. Their RPC asks for the secret and is encrypted
(stages/lanes/session.py).
"""

import collections
import functools
import os
import pathlib
import secrets
import signal

import psutil
import pyspark
import pytest

from tests.e2e.conftest import assert_eventually, command_of
from tests.e2e.jobs import postpone

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
SPARK_HOME = pathlib.Path(pyspark.__file__).parent


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Settings of a cluster of two executors, with three slots each."""
    home = tmp_path / "spark"  # Spark's workers keep what they are given below it
    home.mkdir()
    for part in SPARK_HOME.iterdir():
        (home / part.name).symlink_to(part)
    monkeypatch.setenv("SPARK_HOME", str(home))
    return {"master": "local-cluster[2,3,1024]", "conf": {"spark.authenticate.secret": secrets.token_hex(16)}}


def executors_of(job):
    """The process ids of its executors' JVMs."""
    below = (child.pid for child in psutil.Process(job.pid).children(recursive=True))
    return [pid for pid in below if "CoarseGrainedExecutorBackend" in command_of(pid)]


@pytest.mark.parametrize("mode", ["direct", "batch"])
def test_a_killed_executor_is_replaced_and_its_deliveries_are_not_repeated(platform, cluster, mode):
    count, at_once, fields = {"direct": (6_000, 1, {}), "batch": (20_000, 10, {"mode": "batch", "batch": {"max_events": 10}})}[
        mode
    ]
    platform.register([{}], **fields)
    ids = platform.publish(count)
    platform.receiver.hold_answers_after(count / 2 / at_once)
    job = platform.start(
        "--lanes", mode, spark=cluster, source={"max_events_per_batch": count}, batch={"max_events_per_micro_batch": count}
    )
    before = len(assert_eventually(platform.accepted, lambda got: len(got) > count / 2))
    assert before < count
    executors = executors_of(job)
    assert len(executors) == 2
    assert not [pid for pid in executors if cluster["conf"]["spark.authenticate.secret"] in command_of(pid)]
    os.kill(executors[0], signal.SIGKILL)
    platform.receiver.release_answers()

    assert_eventually(platform.accepted, lambda got: len(set(got)) == count)
    assert platform.stop(job) == 0, platform.log()

    counts = collections.Counter(platform.accepted())
    assert sorted(counts) == sorted(ids)
    assert sum(count - 1 for count in counts.values()) <= before / 20  # what was under way there, and not in its topic yet
    platform.assert_adds_up()


def test_an_executor_that_is_killed_takes_no_turn_of_the_retry_lane_with_it(platform, cluster):
    """Nobody hears of those that were under way there: they leave their shards again."""
    names = [f"ep{number}" for number in range(1, 5)]
    accepted = functools.partial(platform.accepted, *names)
    platform.register([{"endpoint": name} for name in names], endpoints=names)
    ids = [
        event.event_id
        for number, name in enumerate(names)
        for event in postpone(platform, 1_000, endpoint=name, through=f"s{number}")
    ]
    platform.receiver.hold_answers_after(len(ids) / 2)
    job = platform.start("--lanes", "retry", spark=cluster)
    before = len(assert_eventually(accepted, lambda got: len(got) > len(ids) / 2))
    assert before < len(ids)
    os.kill(executors_of(job)[0], signal.SIGKILL)
    platform.receiver.release_answers()

    assert_eventually(accepted, lambda got: len(set(got)) == len(ids))
    assert platform.stop(job) == 0, platform.log()

    counts = collections.Counter(accepted())
    assert sorted(counts) == sorted(ids)
    assert sum(count - 1 for count in counts.values()) <= before / 20


def test_no_process_is_started_for_a_file_of_a_checkpoint_on_a_local_disk(platform, cluster, tmp_path, monkeypatch):
    """Hadoop's own way asks `chmod` for each: ten of them in a micro-batch (docs/adr/0026)."""
    asked = tmp_path / "asked"
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "chmod").write_text(f'#!/bin/sh\necho "$@" >> {asked}\nPATH={os.environ["PATH"]} exec chmod "$@"\n')
    (tools / "chmod").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    platform.register([{}], mode="batch", batch={"max_events": 10})
    platform.publish(10)

    platform.run_once("--lanes", "batch,retry", spark=cluster)

    checkpoint = platform.folder / "checkpoint"
    assert len(platform.accepted()) == 10
    assert list(checkpoint.glob("batch/state/0/*/*.changelog"))
    assert not asked.exists() or str(checkpoint) not in asked.read_text()
