"""The three paths over a real socket: what is answered, and that a bad client hurts nobody."""

import contextlib
import re
import socket
import threading
import urllib.error
import urllib.request

import orjson
import pytest

from delivery import errors
from delivery.config import settings
from delivery.observability import health, http_endpoints
from delivery.observability.health import QueryPhase
from fanout.admin import diagnosis
from fanout.local import kafka_server as local_kafka
from tests.support.reading import blocks

pytestmark = pytest.mark.integration


class Served:
    def __init__(self):
        self.port = local_kafka.free_port()
        self.config = settings.MetricsSettings(port=self.port)
        self.watch = health.Watch(pause_reason=lambda: self.hold, stop=threading.Event())
        self.hold = None
        http_endpoints.serve(self.config, {"direct": self.watch})

    def get(self, path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as exc:
            with exc:
                return exc.code, exc.read()


@pytest.fixture
def served():
    return Served()


def test_a_probe_answers_in_json_with_the_reason(served):
    served.watch.enter(QueryPhase.RUNNING)
    served.watch.observe(health.Backlog(lag=7))
    assert served.get("/readyz")[0] == 200
    served.hold = "Postgres"
    status, body = served.get("/readyz")
    verdict = {"ok": False, "reason": "paused: Postgres"}
    lanes = {"direct": {**verdict, "phase": "running", "lag": 7}}
    assert (status, orjson.loads(body)) == (503, {**verdict, "lanes": lanes})
    assert served.get("/healthz")[0] == 200
    served.watch.enter(QueryPhase.ENDED)
    assert served.get("/healthz")[0] == 503


def test_the_paths_of_the_operations_document_are_served_and_no_others(served):
    served.watch.enter(QueryPhase.RUNNING)
    paths = {
        path for block in blocks("docs/operations.md", "sh") for path in re.findall(r"curl http://127.0.0.1:9108(/\S+)", block)
    }
    assert {path: served.get(path)[0] for path in paths} == {"/readyz": 200, "/healthz": 200, "/metrics": 200}
    assert b'fanout_ready{lane="direct"} 1.0' in served.get("/metrics")[1]
    assert served.get("/")[0] == 404


def test_a_port_in_use_is_named_together_with_the_way_out(served):
    with pytest.raises(errors.SettingsError, match=f"metrics.port: 127.0.0.1:{served.port} cannot be opened .*Choose another"):
        http_endpoints.serve(served.config, {"direct": served.watch})


def test_one_port_is_served_by_ipv6_and_by_ipv4():
    """Regression: `metrics.host = "::"` was refused, so probes could not reach the pods of a cluster with IPv6 only."""
    config = settings.MetricsSettings(host="::", port=local_kafka.free_port())
    http_endpoints.serve(config, {"direct": health.Watch(pause_reason=lambda: None, stop=threading.Event())})
    for address in ("[::1]", "127.0.0.1"):
        with urllib.request.urlopen(f"http://{address}:{config.port}/healthz", timeout=10) as answer:
            assert answer.status == 200


def test_a_client_that_says_nothing_or_goes_away_hurts_nobody(served):
    with contextlib.ExitStack() as clients:
        for _ in range(20):
            client = clients.enter_context(socket.create_connection(("127.0.0.1", served.port)))
            client.sendall(b"GET /metr")
        with socket.create_connection(("127.0.0.1", served.port)) as leaving:
            leaving.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert served.get("/healthz")[0] == 200


@pytest.mark.parametrize(
    ("hold", "text", "is_fine"), [(None, "ready", True), ("Postgres", "lane direct is not ready: paused: Postgres", False)]
)
def test_doctor_asks_the_job_whether_it_is_ready(served, hold, text, is_fine):
    served.watch.enter(QueryPhase.RUNNING)
    served.hold = hold
    config = settings.Settings(metrics=served.config)
    [finding] = diagnosis._findings(config, {"job": diagnosis._job})
    assert (finding.text, finding.is_fine) == (text, is_fine)


def test_doctor_says_which_lane_starts_and_that_waiting_helps(served):
    with pytest.raises(
        errors.LaneFailed, match=r"^lane direct is not ready: starting: the lane delivers nothing until it has started\. Wait"
    ):
        diagnosis._job(settings.Settings(metrics=served.config))


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 404 Not Found\r\ncontent-type: text/html\r\n\r\n<html></html>",
        b"HTTP/1.1 503 Unavailable\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello",
        b"SSH-2.0-OpenSSH_9.6\r\n",
    ],
)
def test_doctor_names_a_port_that_another_program_answers(answer):
    """Regression: an answer that is not the job's ended `fanout doctor` in a traceback, and all findings were lost."""
    with socket.create_server(("127.0.0.1", 0)) as other:

        def serve():
            client, _ = other.accept()
            with client:
                client.recv(65_536)
                client.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        port = other.getsockname()[1]
        config = settings.Settings(metrics=settings.MetricsSettings(port=port))
        [finding] = diagnosis._findings(config, {"job": diagnosis._job})
        thread.join()
    assert (finding.is_fine, finding.text) == (
        False,
        (
            f"port {port} of this machine is answered by a program that is not the job, so the job was not checked: stop the "
            "program, or change metrics.port"
        ),
    )


def test_doctor_does_not_mind_that_no_job_runs():
    port = local_kafka.free_port()
    assert "no job answers" in diagnosis._job(settings.Settings(metrics=settings.MetricsSettings(port=port)))
    assert "not checked" in diagnosis._job(settings.Settings())
