"""`fanout doctor`: check everything that the platform needs, and say how to repair each fault.

Runs in `fanout` commands. Every check runs, whatever the results of other checks.
"""

from __future__ import annotations

import http.client
import logging
import os
import sys
import sysconfig
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import msgspec
from confluent_kafka import KafkaException

from delivery import errors
from delivery.config import kafka_clients, plan_builder, settings, topic_pattern
from delivery.stages import local_address
from delivery.stages.checkpoint import object_store
from delivery.stages.kafka import topics
from delivery.webhooks.formats import registry_client
from fanout.admin import registry_commands
from fanout.jvm import jars, java
from subscriptions_db.manifest import lint
from subscriptions_db.postgres import connect, migrate
from subscriptions_db.secrets import keyring
from subscriptions_db.snapshot import registry_reader

log = logging.getLogger(__name__)

JOB_TIMEOUT_S = 5
"""Seconds to wait for the job's /readyz."""
MAX_ANSWER_BYTES = 64 * 1024
"""Maximum bytes of the answer to /readyz that are read. The job's own answer has some hundred bytes for each lane."""
NEXT_STEPS = {
    "starting": "the lane delivers nothing until it has started. Wait some seconds, then run `fanout doctor` again",
    "stopping": "the job ends after its micro-batches; start it again to deliver further events",
    "ended": "the lane delivers nothing. The job's log names the cause: correct it, and start the job again",
    "paused: waits for the Lease": "this driver delivers nothing until then. If the holder should not run, stop it",
    "paused: the Lease": "wait some seconds, then run `fanout doctor` again",
}
"""Beginning of the reason why a lane is not ready → the operator's next step. Other reasons name the next step themselves."""
SHOWN = 20
"""Maximum quarantined rows, or warnings about subscriptions, that a finding names. The finding only counts the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Result of one check."""

    subject: str
    """The name of the check, such as `kafka`."""
    is_fine: bool
    text: str
    """The state that the check found; a fault comes with its repair."""

    def document(self) -> dict[str, object]:
        """Return the finding for JSON output: a dictionary with the fields of this class."""
        return asdict(self)


class _LaneReadiness(msgspec.Struct):
    """The readiness of one lane, in the answer to /readyz."""

    ok: bool
    reason: str


class _Readiness(msgspec.Struct):
    """The part of the answer to /readyz that is read. delivery.observability.http_endpoints writes the answer."""

    lanes: dict[str, _LaneReadiness]
    """Lane name → its readiness."""


def examine(config: settings.Settings) -> list[Diagnosis]:
    """Run every check, and return the finding of each."""
    checks: dict[str, Callable[[settings.Settings], str]] = {
        "python": _python,
        "java": lambda _: str(java.find()),
        "host name": _host_name,
        "jars": _jars,
        "kafka": _kafka,
        "topics": _topics,
        "schema registry": _schema_registry,
        "postgres": _postgres,
        "keys": lambda config: f"secrets are encrypted with key {keyring.KeyRing.from_settings(config.keys).active}",
        "registry": _registry,
        "subscriptions": _subscriptions,
        "checkpoint": _checkpoint,
        "guard": _guard,
        "job": _job,
    }
    return list(_findings(config, checks))


def _findings(config: settings.Settings, checks: dict[str, Callable[[settings.Settings], str]]) -> Iterator[Diagnosis]:
    for subject, check in checks.items():
        try:
            text = check(config)
        except errors.FanoutError as exc:
            yield Diagnosis(subject=subject, is_fine=False, text=str(exc))
        except Exception as exc:  # an operator who diagnoses needs the other checks too
            log.exception(
                "the check %s of `fanout doctor` ended with an unforeseen error, and all other checks run. Send this traceback "
                "to the maintainers of the platform",
                subject,
            )
            text = (
                f"not checked to the end, because of an unforeseen {type(exc).__name__}, and all other checks run: send the "
                "traceback in the log to the maintainers of the platform"
            )
            yield Diagnosis(subject=subject, is_fine=False, text=text)
        else:
            yield Diagnosis(subject=subject, is_fine=True, text=text)


def _python(_: settings.Settings) -> str:
    """Return the version of Python, with a warning if this interpreter was compiled without optimisation.

    Without optimisation, workers take about a third more CPU. An interpreter in /usr counts as optimised, because Linux
    distributions optimise theirs.
    """
    version = sys.version.split()[0]
    if sys.base_prefix == "/usr" or "--enable-optimizations" in str(sysconfig.get_config_var("CONFIG_ARGS")):
        return version
    return (
        f"{version}, compiled without --enable-optimizations: workers take about a third more CPU than with it. To avoid this, "
        "use the Python of the image or of a Linux distribution"
    )


def _host_name(config: settings.Settings) -> str:
    """Return this machine's host name, and the address or name that Spark uses in its place, if any.

    In many containers the host name has no address, and Spark's JVM cannot start with it.
    """
    name = local_address.host_name()
    if added := local_address.missing(os.environ, config.spark.master, name=name):
        address = added[local_address.ADDRESS]
        return f"{name} does not resolve: Spark uses {address}, unless {local_address.ADDRESS} is set"
    chosen = os.environ.get(local_address.ADDRESS) or os.environ.get(local_address.NAME)
    return f"{name}; Spark uses {chosen}, from the environment" if chosen else name


def _jars(_: settings.Settings) -> str:
    found = jars.ensure()
    return f"{len(found.connector)} for Spark, {len(found.store)} for S3, {len(found.broker)} for the embedded broker"


def _kafka(config: settings.Settings, timeout_s: float = topics.TIMEOUT_S) -> str:
    try:
        known = kafka_clients.admin(config.kafka).list_topics(timeout=timeout_s)
    except KafkaException as exc:
        raise errors.KafkaUnavailable(
            f"{topics.unavailable(config.kafka, exc, 'to list topics')}. A job that starts now ends with exit code 1; a "
            "running job waits for Kafka. For a local Kafka, run `fanout up`"
        ) from exc
    return f"{config.kafka.bootstrap_servers}, {len(known.brokers)} brokers, {len(known.topics)} topics"


def _topics(config: settings.Settings) -> str:
    pattern = config.source.topic_pattern
    known = kafka_clients.admin(config.kafka)
    try:
        names = known.list_topics(timeout=topics.TIMEOUT_S).topics
    except KafkaException as exc:
        raise errors.KafkaUnavailable(
            "not checked, because the request to Kafka failed: see the finding `kafka`. If it is ok, run `fanout doctor` again"
        ) from exc
    topics.require_apart(config)
    topics.require_room(config.kafka, config.delivery.retries_topic)
    return f"{sum(topic_pattern.matches(pattern, name) for name in names)} match {pattern}"


def _schema_registry(config: settings.Settings) -> str:
    formats = plan_builder.formats_of(config.schema_registry)
    if formats is None:
        return "none, because schema_registry.topic_pattern is empty"
    may_read = registry_client.RegistryClient(formats.access).require_answer()
    answer = f"{config.schema_registry.url} answers, for topics that match {formats.topic_pattern}"
    if may_read:
        return answer
    return (
        f"{answer}. This login may not read schema 1 (status 403). A topic whose schema it may not read is paused: check that "
        "it may read the schemas of these topics"
    )


def _postgres(config: settings.Settings) -> str:
    with connect.connect(config.database) as connection:
        version = connection.info.server_version // 10_000
        if version < 15:  # noqa: PLR2004
            raise errors.RegistryOutdated(
                f"Postgres {version} is too old for the platform, so its tables were not checked: upgrade it to 15 or later"
            )
        migrate.require_current(connection)
    return f"version {version}, the schema is current"


def _registry(config: settings.Settings) -> str:
    ring = keyring.KeyRing.from_settings(config.keys)
    with connect.connect(config.database) as connection:
        read = registry_reader.read_full(connection, ring, plan_builder.guard_of(config.delivery))
        other_keys = sorted(keyring.ids_in_use(connection) - {ring.active})
    if faults := read.quarantined():
        more = [f"… and {len(faults) - SHOWN} more"] if len(faults) > SHOWN else []
        shown = "; ".join([*(f"{row}: {fault}" for row, fault in list(faults.items())[:SHOWN]), *more])
        raise errors.RegistrationError(
            "",
            f"{len(faults)} rows are quarantined: deliveries to such an endpoint wait, and events of such a subscription are "
            f"skipped. {shown}. Do what a fault says, or else correct its row with `fanout apply`",
        )
    counts = f"revision {read.revision}, {len(read.endpoints)} endpoints, {len(read.subscriptions)} subscriptions"
    if not other_keys:
        return counts
    return (
        f"{counts}; keys in use beside {ring.active}: {', '.join(other_keys)}. Run `fanout keys rotate` before you remove one "
        "of them from keys.ring"
    )


def _subscriptions(config: settings.Settings) -> str:
    """Raise RegistrationError for subscriptions that are probably mistakes, for example because they match no event.

    By default, the API and `fanout apply` only warn of a probable mistake. Rows written by plain SQL are not checked at all.
    """
    with connect.connect(config.database) as connection, connect.translated_errors():
        found = lint.subscriptions(connection, None, registry_commands.known_types(config))
    if found:
        more = [f"… and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
        warnings = "; ".join([*map(str, found[:SHOWN]), *more])
        raise errors.RegistrationError(
            "",
            f"{len(found)} warnings, and the subscriptions stay in use as they are: {warnings}. With `fanout apply`, correct "
            "each subscription that should match events, or register the tenants and event types that it names",
        )
    return "each can match events"


def _checkpoint(config: settings.Settings) -> str:
    location = config.spark.checkpoint
    folder = object_store.folder_of(location)
    if folder is None:
        return _object_store(config.spark)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".doctor").touch()
        (folder / ".doctor").unlink()
    except OSError as exc:
        raise errors.SettingsError(
            f"{location} is not writable ({exc.strerror}): the job would not start. Make it writable, or set spark.checkpoint"
        ) from exc
    return f"{location} is writable"


def _object_store(config: settings.SparkSettings) -> str:
    """Write, read and delete an object at the checkpoint with Spark's client, as the job would, and return the result.

    Starts a JVM, which takes some seconds.
    """
    from delivery.stages.lanes import session  # noqa: PLC0415  # pyspark takes a second to import
    from fanout.jvm import libraries  # noqa: PLC0415  # likewise

    with session.running(config.model_copy(update={"master": "local[1]"}), libraries.of(config)) as spark:
        object_store.require_usable(spark, config.checkpoint)
    return f"an object below {config.checkpoint} was written, read and deleted here; the rights of executors were not checked"


def _job(config: settings.Settings) -> str:
    """Ask the job on this machine, if there is one, whether it is ready.

    Raise LaneFailed if a lane is not ready, or if another program answers on the port `metrics.port`. `fanout archive` and
    `fanout serve` read the same setting. If one of these two listens on the port, its answer is mistaken for the job's answer.
    """
    if not config.metrics.port:
        return "not checked, because metrics.port is 0"
    port = config.metrics.port
    try:
        answer = msgspec.json.decode(_readyz(port), type=_Readiness)
    except OSError:
        return f"not checked, because no job answers on port {port} of this machine. If a job should run here, start it"
    except (http.client.HTTPException, msgspec.MsgspecError) as exc:
        raise errors.LaneFailed(
            f"port {port} of this machine is answered by a program that is not the job, so the job was not checked: stop the "
            "program, or change metrics.port"
        ) from exc
    if reasons := {name: lane.reason for name, lane in answer.lanes.items() if not lane.ok}:
        raise errors.LaneFailed(
            "; ".join(f"lane {name} is not ready: {_with_next_step(reason)}" for name, reason in reasons.items())
        )
    return "ready"


def _readyz(port: int) -> bytes:
    """Return at most MAX_ANSWER_BYTES of the answer to /readyz, whatever its status.

    Raise OSError if no answer comes, and HTTPException if the answer is not HTTP.
    """
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy of the environment is on another machine
    try:
        with direct.open(f"http://127.0.0.1:{port}/readyz", timeout=JOB_TIMEOUT_S) as answer:
            return bytes(answer.read(MAX_ANSWER_BYTES))
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.read(MAX_ANSWER_BYTES)


def _with_next_step(reason: str) -> str:
    steps = [step for beginning, step in NEXT_STEPS.items() if reason.startswith(beginning)]
    return f"{reason}: {steps[0]}" if steps else reason


def _guard(config: settings.Settings) -> str:
    opened = plan_builder.opened_for_development(config.delivery)
    return f"OPEN for development, never in production: {opened}" if opened else "public https addresses only"
