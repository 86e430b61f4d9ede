"""A worker whose JVM has closed the socket ends without a traceback."""

import subprocess
import sys

import pytest

from delivery.stages import worker_daemon

BROKEN = """
import pyspark.daemon
from delivery.stages import worker_daemon

def broken(*_):
    raise BrokenPipeError

pyspark.daemon.worker = broken
pyspark.daemon.manager = lambda: print(pyspark.daemon.worker(None, True))
worker_daemon.main()
"""


def test_the_daemon_lets_a_worker_end_quietly_when_the_jvm_is_gone():
    """Regression: each orderly Ctrl-C of `fanout run` printed a traceback of PySpark's daemon."""
    ended = subprocess.run([sys.executable, "-c", BROKEN], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "1\n", "")


def test_another_failure_of_a_worker_is_not_hidden():
    def failing(*_):
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        worker_daemon.ending_quietly(failing)(None, True)


def test_the_exit_code_of_a_worker_is_passed_on():
    assert worker_daemon.ending_quietly(lambda *_: 3)(None, True) == 3
