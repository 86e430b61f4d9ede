"""Run real Kafka brokers (KRaft) on this machine: one, or several in one cluster.

Runs in `fanout` commands, the tests and the load tests.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException

from delivery import errors
from delivery.config import kafka_clients, settings
from delivery.stages import class_sharing
from fanout.jvm import class_archive, jars, java
from fanout.local import guardian

PORTS = range(20_000, 30_000)
"""Ports for servers. By default, Linux and macOS give outgoing connections only ports above this range. So no connection takes
a chosen port before the server listens on it."""
START_TIMEOUT_S = 180
"""Seconds to wait for a broker's first answer. On an overloaded machine a broker took more than 60 s. A broker that cannot
start exits at once."""
STOP_TIMEOUT_S = 20
"""Seconds that a broker may take to stop before it is killed."""
JVM = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
"""Options of the broker's JVM. The quick compiler (C1) alone takes less CPU time than both compilers: two thirds for a start,
and half for 300,000 events (docs/adr/0024)."""
BROKER_PASSWORD = "broker"  # noqa: S105  # only this machine reaches the broker
PROPERTIES = """\
process.roles=broker,controller
node.id={node_id}
controller.quorum.voters={voters}
listeners={protocol}://{host}:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners={protocol}://{host}:{port}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,{protocol}:{protocol}
controller.listener.names=CONTROLLER
inter.broker.listener.name={protocol}
# Below the broker's working folder. Kafka reads this file as ISO-8859-1, and a list of folders by its commas.
log.dirs=data
num.partitions=4
# As in production: topics are created explicitly.
auto.create.topics.enable=false
default.replication.factor={replicas}
min.insync.replicas={in_sync}
offsets.topic.replication.factor={replicas}
transaction.state.log.replication.factor={replicas}
transaction.state.log.min.isr={in_sync}
group.initial.rebalance.delay.ms=0
# By default an idle controller writes a record each 500 ms, which takes a quarter of an idle broker's CPU.
metadata.max.idle.interval.ms=0
# After a crash the controller accepts the broker again only when its old session has expired, after 9 s by default.
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=500
"""
SASL_PROPERTIES = """\
sasl.enabled.mechanisms=PLAIN
sasl.mechanism.inter.broker.protocol=PLAIN
listener.name.{listener}.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
username="broker" password="{password}" user_broker="{password}" {users};
"""
TLS_PROPERTIES = """\
listener.name.{listener}.ssl.client.auth=required
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
ssl.truststore.type=PEM
ssl.truststore.location={authority}
"""
GUARDED_PROPERTIES = """\
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
# Broker and controller reach each other as ANONYMOUS.
super.users=User:broker;User:ANONYMOUS
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """The identity of a broker in its cluster, and the ports of all controllers. Each broker is also a controller."""

    node_id: int
    cluster_id: str
    controller_ports: tuple[int, ...]
    """Ports of the controllers of nodes 1, 2, …"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerTls:
    """PEM files for mutual TLS. Their absolute paths must be ISO-8859-1, because Kafka reads its settings in this encoding."""

    authority: Path
    """The certificate of the authority that signed the certificates of the broker and of its clients."""
    keystore: Path
    """The broker's private key in PKCS#8, and its certificates. `EmbeddedKafka`, as a client, uses this file too."""


def seats(count: int) -> list[Seat]:
    """Return the seats of a new cluster of `count` brokers. No broker answers before a majority of the brokers runs."""
    cluster_id = uuid.uuid4().hex[:22]
    controller_ports = tuple(free_port() for _ in range(count))
    return [Seat(node_id=number, cluster_id=cluster_id, controller_ports=controller_ports) for number in range(1, count + 1)]


class EmbeddedKafka:
    """A Kafka broker that keeps its data: after a stop or a crash it starts again with all records.

    With port 0, the broker gets a free port. `seat` makes the broker a part of a cluster. In a cluster, a topic has a replica
    on each broker by default, and a producer with `acks=all` needs all replicas but one in sync. `sasl_users` are names with
    passwords. Without them, clients do not log in. With `tls`, the broker answers over TLS only, to clients with a certificate
    of the same authority. With `is_guarded`, users may do only what Kafka's ACLs permit; the user `broker` and clients without
    a login may do everything. With `archive_to`, the broker's JVM writes an archive of its classes there when it stops.
    """

    def __init__(
        self,
        root: Path,
        *,
        libraries: jars.Jars,
        port: int = 0,
        seat: Seat | None = None,
        sasl_users: Mapping[str, str] | None = None,
        tls: BrokerTls | None = None,
        is_guarded: bool = False,
        host: str = "127.0.0.1",
        archive_to: Path | None = None,
    ) -> None:
        self._root = root.absolute()
        self._libraries = libraries
        self._sasl_users = sasl_users or {}
        self._tls = tls
        self._is_guarded = is_guarded
        self._host = host
        self._archive_to = archive_to
        self.port = port or free_port()
        self._seat = seat or seats(1)[0]
        self._process: subprocess.Popen[bytes] | None = None
        self._guardian: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap_servers(self) -> str:
        """Return the broker's address, for the setting `kafka.bootstrap_servers`."""
        return f"{self._host}:{self.port}"

    @property
    def security_protocol(self) -> str:
        """Return the protocol of the broker's clients, for the setting `kafka.security_protocol`."""
        return f"{'SASL_' if self._sasl_users else ''}{'SSL' if self._tls else 'PLAINTEXT'}"

    def client_settings(self) -> dict[str, str]:
        """Return settings of the area `kafka` for a client with the login and the certificate of the broker itself."""
        found = {"bootstrap_servers": self.bootstrap_servers, "security_protocol": self.security_protocol}
        if self._sasl_users:
            found |= {"sasl_mechanism": "PLAIN", "sasl_username": "broker", "sasl_password": BROKER_PASSWORD}
        if self._tls:
            found |= {"ssl_ca_file": str(self._tls.authority), "ssl_keystore_file": str(self._tls.keystore)}
        return found

    @property
    def pid(self) -> int:
        """Return the pid of the running broker. Raise LocalStackError before `start`, and after `stop` or `kill`."""
        if self._process is None:
            raise errors.LocalStackError("the embedded Kafka broker is not running: start it first")
        return self._process.pid

    def start(self) -> None:
        """Start the broker, and wait until it answers.

        Raise LocalStackError if the broker does not start or answer, if its port is in use, or if there is no supported Java.
        """
        require_free(self.port, "kafka")
        self._root.mkdir(parents=True, exist_ok=True)
        properties = self._write_properties()
        archive = class_archive.find(class_archive.BROKER) if self._archive_to is None else None
        sharing = [] if archive is None else class_sharing.options(archive)
        if not (self._root / "data" / "meta.properties").exists():
            formatting = self._java(
                *sharing, "kafka.tools.StorageTool", "format", "-t", self._seat.cluster_id, "-c", str(properties)
            )
            if formatting.wait():
                raise self._failure()
        archiving = [] if self._archive_to is None else [f"-XX:ArchiveClassesAtExit={self._archive_to}"]
        self._process = self._java(*archiving, *sharing, "kafka.Kafka", str(properties))
        self._guardian = guardian.watch(self._process.pid)
        self._await_answer()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stop the broker gracefully, or kill it after the timeout. Do nothing if it does not run."""
        self._end(signal.SIGTERM, timeout_s)

    def kill(self) -> None:
        """Kill the broker, as a crash does. Do nothing if it does not run."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals, timeout_s: float = STOP_TIMEOUT_S) -> None:
        if self._process is None or self._guardian is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        guardian.dismiss(self._guardian)  # not before: this process may be killed while the broker stops
        self._process = self._guardian = None

    def _java(self, *arguments: str) -> subprocess.Popen[bytes]:
        classpath = os.pathsep.join(str(jar) for jar in self._libraries.broker)
        log = (self._root / "broker.log").open("ab")
        with log:
            return subprocess.Popen(
                [str(java.find().absolute()), *JVM, "-cp", classpath, *arguments],
                cwd=self._root,
                env=os.environ | {"LC_ALL": "C.UTF-8"},  # Java decodes arguments and its working folder by the locale
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # so that Ctrl-C reaches only the command, which stops the job before its broker
            )

    def _write_properties(self) -> Path:
        controllers = self._seat.controller_ports
        text = PROPERTIES.format(
            protocol=self.security_protocol,
            host=self._host,
            port=self.port,
            node_id=self._seat.node_id,
            controller_port=controllers[self._seat.node_id - 1],
            voters=",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(controllers, start=1)),
            replicas=len(controllers),
            in_sync=max(1, len(controllers) - 1),
        )
        listener = self.security_protocol.lower()
        if self._sasl_users:
            users = " ".join(f'user_{name}="{password}"' for name, password in self._sasl_users.items())
            text += SASL_PROPERTIES.format(listener=listener, users=users, password=BROKER_PASSWORD)
        if self._tls:
            keystore, authority = self._tls.keystore.absolute(), self._tls.authority.absolute()
            text += TLS_PROPERTIES.format(listener=listener, keystore=keystore, authority=authority)
        if self._is_guarded:
            text += GUARDED_PROPERTIES
        path = self._root / "server.properties"
        path.write_text(text)
        return path

    def _await_answer(self) -> None:
        asking_often = {"librdkafka_options": {"reconnect.backoff.max.ms": "200"}}
        admin = kafka_clients.admin(settings.KafkaSettings.model_validate(self.client_settings() | asking_often))
        deadline = time.monotonic() + START_TIMEOUT_S
        while self._process is not None and self._process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(KafkaException):
                admin.list_topics(timeout=1)
                return
        self.kill()
        raise self._failure()

    def _failure(self) -> errors.LocalStackError:
        return errors.LocalStackError(
            "the Kafka broker did not start, and the local stack is stopped. The reason is at the end of "
            f"{self._root / 'broker.log'}. Remove the cause, and start again"
        )


def free_port() -> int:
    """Return a port of PORTS, chosen at random, that nothing uses on 127.0.0.1 now. Raise LocalStackError if none is free.

    On Linux this process holds the port until the process ends. A server with SO_REUSEADDR, as in Java, Go and asyncio, can
    listen on the port nevertheless.
    """
    for _ in PORTS:
        port, holder = secrets.choice(PORTS), socket.socket()
        try:
            holder.bind(("127.0.0.1", port))
        except OSError:
            holder.close()
            continue
        if sys.platform == "linux":
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.detach()  # open until this process ends, so that no other process chooses the port
        else:
            holder.close()
        return port
    raise errors.LocalStackError(
        f"no port from {PORTS.start} to {PORTS.stop - 1} is free on 127.0.0.1, so no further server was started: stop the "
        "processes that use these ports"
    )


def is_free(port: int) -> bool:
    """Return True if no process listens on the port of 127.0.0.1."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def require_free(port: int, name: str) -> None:
    """Raise LocalStackError if a process listens on the port of 127.0.0.1. The message names the option `--<name>-port`."""
    if not is_free(port):
        raise errors.LocalStackError(
            f"port {port} is in use, so nothing was started: stop the process that uses it, or choose another port with "
            f"--{name}-port"
        )
