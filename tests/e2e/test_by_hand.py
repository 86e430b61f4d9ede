"""The README's commands, one after the other, each a process of its own, with their own Postgres and Kafka."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys

import orjson
import psutil
import pytest

from delivery import errors
from fanout.admin import registry_commands
from fanout.local import kafka_server as local_kafka
from fanout.local import receiver
from tests.e2e.conftest import START_S, assert_eventually
from tests.support import reading

pytestmark = pytest.mark.e2e


def fanout(folder, *arguments, check=True, stdin=""):
    environ = {name: value for name, value in os.environ.items() if not name.startswith("FANOUT_")}
    command = [sys.executable, "-m", "fanout.cli.main", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=START_S, input=stdin
    )
    assert not check or done.returncode == 0, done.stderr
    return done


@pytest.fixture
def up(tmp_path):
    port = local_kafka.free_port()
    command = [sys.executable, "-m", "fanout.cli.main", "up", "--kafka-port", str(port)]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        shown = [process.stdout.readline() for _ in range(2)]
        assert "postgresql://" in shown[0]
        assert str(port) in shown[1]
        assert len(processes_of(tmp_path)) >= 2
        yield tmp_path
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(START_S) == 0
        process.stdout.close()
    assert_eventually(lambda: processes_of(tmp_path), lambda left: not left)


def processes_of(folder):
    """The processes that were started with a path below `folder`."""
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if any(str(folder) in word for word in process.info["cmdline"] or ())
    ]


@contextlib.contextmanager
def listening(folder, *arguments):
    """Run `fanout listen`; yield it when it listens."""
    process = subprocess.Popen(
        [sys.executable, "-m", "fanout.cli.main", *arguments, "--json"],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        assert "listening on" in process.stderr.readline()
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(START_S) == 0


def test_the_first_five_minutes_go_as_the_readme_says_line_by_line(up):
    port = str(local_kafka.free_port())
    [example] = reading.blocks("README.md", "yaml")
    (up / "subscriptions.yaml").write_text(example.replace(":9000/", f":{port}/"))
    again = fanout(up, "up", check=False)
    assert (again.returncode, again.stderr.count("\n")) == (1, 1)
    assert "another `fanout up` runs" in again.stderr
    _, by_hand = reading.blocks("README.md", "sh")
    lines = [shlex.split(line, comments=True) for line in by_hand.splitlines()]
    assert lines[:2] == [["source", ".venv/bin/activate"], ["fanout", "up"]]  # as the tests' interpreter, and the fixture

    secret, listener = None, None
    with contextlib.ExitStack() as stack:
        for program, *words in lines[2:]:
            if program == "echo":
                event, *piped_to = words
                assert piped_to == ["|", "fanout", "publish", "-"]
                fanout(up, "publish", "-", stdin=event)
                continue
            if words[0] == "listen":
                arguments = [port if word == "9000" else secret if word.startswith("whsec_") else word for word in words]
                listener = stack.enter_context(listening(up, *arguments))
                continue
            said = fanout(up, *words).stdout
            assert "warning" not in said
            secret = secret or next(iter(re.findall(r"whsec_\S+", said)), None)
        # `run --once` ran all lanes and has ended, also those without anything to do.
        arrived = [orjson.loads(listener.stdout.readline()) for _ in range(12)]
    doctor = fanout(up, "doctor", "--json", check=False)
    assert [finding for finding in orjson.loads(doctor.stdout) if not finding["is_fine"]] == []
    assert {(request["path"], request["verified"]) for request in arrived} == {("/orders", True)}
    assert len({request["webhook_id"] for request in arrived if orjson.loads(request["body"])["id"] == "d-1"}) == 2


def test_a_used_port_is_named_together_with_the_way_out(kafka, jars, tmp_path):
    with pytest.raises(errors.LocalStackError, match=f"port {kafka.port} is in use.*--kafka-port"):
        local_kafka.EmbeddedKafka(tmp_path, libraries=jars, port=kafka.port).start()
    with (
        receiver.Receiver(secrets_of=lambda _: [], on_received=lambda _: None) as first,
        pytest.raises(errors.LocalStackError, match=r"Address already in use.* --port"),
        receiver.Receiver(secrets_of=lambda _: [], on_received=lambda _: None, port=first.port),
    ):
        pass


def test_getting_what_does_not_exist_says_what_does(platform):
    with pytest.raises(errors.RegistrationError, match="the kinds are tenants, customers, endpoints, subscriptions"):
        registry_commands.kind_of("things")
    with pytest.raises(errors.RegistrationError, match=r"there is no such endpoint, .*; `fanout get endpoints` lists them"):
        registry_commands.get(platform.config, registry_commands.kind_of("endpoints"), "ep9")
