"""Pods are killed, and a node is drained, while events come: lost 0."""

import threading
import time
import urllib.request

from tests.k8s import release
from tests.k8s.cluster import kubectl
from tests.k8s.test_changes import changing

PER_S = 200


def test_a_killed_driver_loses_nothing(ready):
    with changing(ready, "driver's pod killed", per_s=PER_S) as figures:
        ready.release.kill(ready.release.await_ready("driver"))
    assert figures["lost"] == 0


def test_a_killed_executor_is_replaced_and_loses_nothing(ready):
    load = ready.load()
    [killed, *_] = ready.release.running("executor")
    with load.steadily(PER_S):
        time.sleep(5)
        began = time.monotonic()
        ready.release.kill(killed)

        def successors():
            return [pod for pod in ready.release.running("executor") if release.uid(pod) != release.uid(killed)]

        release.eventually(successors, within_s=120)
        replaced_s = time.monotonic() - began
        time.sleep(10)
        pause_s = ready.arrived.longest_pause_s(began, time.monotonic())
    found = ready.prove("executor's pod killed", load.ids, replaced_s=replaced_s, pause_s=pause_s)
    assert found["lost"] == 0


def test_a_drained_node_keeps_the_api_up_and_loses_nothing(ready):
    """The budget lets one pod of `serve` go at a time, so that the API answers while the driver moves to the other node."""
    release.eventually(lambda: len(ready.release.ready("serve")), lambda many: many == 2, within_s=120)
    node = ready.release.await_ready("driver")["spec"]["nodeName"]
    with changing(ready, "node drained", per_s=PER_S) as figures, Asking(serve_url()) as asking:
        options = ["--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=150s"]
        try:
            kubectl.run("drain", node, *options, timeout_s=180)
            assert ready.release.await_ready("driver")["spec"]["nodeName"] != node
        finally:
            kubectl.run("uncordon", node)
    assert figures["lost"] == 0
    assert asking.answered
    assert not asking.failures


def serve_url():
    address = kubectl.get("service", "fanout-serve", "--namespace", release.NAMESPACE)["spec"]["clusterIP"]
    return f"http://{address}/readyz"


class Asking:
    """Ask the API several times a second while the context is open."""

    def __init__(self, url):
        self.answered = 0
        self.failures = []
        self._url = url
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()

    def _run(self):
        while not self._ended.wait(0.2):
            try:
                with urllib.request.urlopen(self._url, timeout=10):  # noqa: S310  # of serve_url()
                    self.answered += 1
            except OSError as exc:
                self.failures.append(str(exc))
