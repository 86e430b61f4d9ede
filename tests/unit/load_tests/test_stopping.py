"""A load test that gets SIGTERM ends the processes that it started."""

import signal
import subprocess
import sys

SCENARIO = """
import contextlib, sys, time
from load_tests.harness import stopping

@contextlib.contextmanager
def started():
    try:
        yield
    finally:
        print("stopped", flush=True)

stopping.install()
with started():
    print("started", flush=True)
    time.sleep(60)
"""


def test_sigterm_closes_the_open_contexts_of_a_load_test():
    """Without its Kafka, a job that nobody ends would keep running."""
    running = subprocess.Popen([sys.executable, "-c", SCENARIO], stdout=subprocess.PIPE, text=True)
    assert running.stdout.readline() == "started\n"
    running.send_signal(signal.SIGTERM)
    said, _ = running.communicate(timeout=20)

    assert said == "stopped\n"
    assert running.returncode == 128 + signal.SIGTERM
