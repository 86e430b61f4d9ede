"""What can be set: each area's names, defaults, bounds and meanings.

`delivery.config.loader` reads them at the start. Executors get small frozen values made from them, never all of them; those
that look up the registry themselves get the areas `database` and `keys`. docs/configuration.md is generated from the
docstrings in this file.
"""

from __future__ import annotations

from typing import Annotated

import pydantic
from pydantic import Field, SecretStr

from delivery.config.service_settings import Api, Archive, Operations
from delivery.config.setting_types import Area, Seconds, TopicPattern, pairs, pattern_or_none, with_one_group


class Database(Area):
    """Postgres, version 15 or later: the registry."""

    url: SecretStr = SecretStr("postgresql://fanout@127.0.0.1:5432/fanout")
    """libpq connection URL. TLS and all other libpq options go into its query."""
    connect_timeout_s: Seconds = 5
    """How long one connection attempt may take."""
    statement_timeout_s: Seconds = 30
    """How long one statement may take before Postgres cancels it."""


class Keys(Area):
    """The key ring that seals customers' secrets in Postgres (AES-256-GCM)."""

    ring: dict[str, SecretStr] = {}
    """Key id → 32 bytes in base64. All of them open; `active` seals. In the environment: `id1=base64,id2=base64`."""
    active: str = ""
    """The id of the key that seals new secrets. May stay empty when the ring has exactly one key."""

    _from_text = pydantic.field_validator("ring", mode="before")(pairs)


class Kafka(Area):
    """Kafka, version 3.6 or later; the same settings serve Spark's client and the command's."""

    bootstrap_servers: str = "127.0.0.1:9092"
    """`host:port`, several separated by commas."""
    security_protocol: Annotated[str, Field(pattern="^(PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL)$")] = "PLAINTEXT"
    """PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
    sasl_mechanism: Annotated[str, Field(pattern="^(|PLAIN|SCRAM-SHA-256|SCRAM-SHA-512)$")] = ""
    """PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512, with the two settings below."""
    sasl_username: str = ""
    """User name for SASL."""
    sasl_password: SecretStr = SecretStr("")
    """Password for SASL."""
    ssl_ca_file: str = ""
    """PEM file of the authorities to trust; empty: the system's."""
    ssl_keystore_file: str = ""
    """PEM file with the client's key and certificates, for mutual TLS."""
    spark_options: dict[str, SecretStr] = {}
    """Any other option of the Java client, by which Spark reads, passed through with the prefix `kafka.`
    (`spark_options."client.rack" = "a"`). Never shown: it may be a password."""
    librdkafka_options: dict[str, SecretStr] = {}
    """Any other option of librdkafka, by which the workers write results and the commands work. Never shown."""

    _from_text = pydantic.field_validator("spark_options", "librdkafka_options", mode="before")(pairs)


class Source(Area):
    """Which topics carry events, and where a plain JSON event keeps its attributes."""

    topic_pattern: TopicPattern = r"events\..+"
    """Regular expression of all of a name of the topics to read, of what Java and Python have in common (docs/adr/0037). New
    topics that match are found while the job runs."""
    realtime_pattern: Annotated[str, pydantic.AfterValidator(pattern_or_none)] = ""
    """Regular expression, as `topic_pattern`, of all of a name of those of its topics that the real-time lane delivers, in
    milliseconds: one task and one worker process for each of their partitions. Empty: there is no such lane."""
    topic_prefix: str = "events."
    """What is cut from a topic's name to make the event type, when the event itself names none."""
    starting_offsets: Annotated[str, Field(pattern="^(earliest|latest)$")] = "earliest"
    """Where a first start begins. A topic found later always begins at its first record."""
    max_events_per_batch: Annotated[int, Field(gt=0)] = 20_000
    """At most so many events in a micro-batch of the direct lane, and so many records in one of the retry lane: bounds memory,
    and the time until a change is in effect."""
    max_event_bytes: Annotated[int, Field(gt=0, le=700_000)] = 262_144
    """A larger record is rejected to the operator's topic. A dead letter carries the event in base64, which takes a third
    more, and must itself fit into Kafka's 1 MiB."""
    tenant_of_topic: Annotated[str, pydantic.AfterValidator(with_one_group)] = ""
    """Python's regular expression for topics that belong to one tenant each; its one group is the tenant's id, as in
    `events\\.([^.]+)\\..+`. An event of another tenant is rejected there. A topic that does not match belongs to nobody."""
    id_field: str = "id"
    """Plain JSON: dotted path of the event id. Without one, the id is made of topic, partition and offset."""
    type_field: str = "type"
    """Plain JSON: dotted path of the event type. Without one, the type is the topic's name less `topic_prefix`."""
    tenant_field: str = "tenant_id"
    """Plain JSON: dotted path of the tenant id; an event without one is rejected."""
    sub_tenant_field: str = "sub_tenant_id"
    """Plain JSON: dotted path of the sub-tenant id."""
    time_field: str = "time"
    """Plain JSON: dotted path of the time it happened, RFC 3339. Without one, when Kafka appended the record."""


class Snapshot(Area):
    """Where the workers find the registry. docs/adr/0007-broadcast-or-look-up.md says which source is better when."""

    source: Annotated[str, Field(pattern="^(broadcast|lookup)$")] = "broadcast"
    """`broadcast`: the driver follows the registry, each worker has all of it. `lookup`: the workers ask Postgres for what
    their events need; they then hold `database.url` and `keys.ring`."""
    poll_interval_s: Seconds = 1
    """Broadcast: how often to ask for changes when no notification came."""
    max_age_s: Seconds = 3600
    """Broadcast: with Postgres away for longer than this, the job holds instead of delivering by an old registry."""
    lookup_ttl_s: Seconds = 30
    """Look-ups: how long a worker keeps an answer, and so how long a change may take to be in effect."""
    lookup_max_answers: Annotated[int, Field(gt=0)] = 100_000
    """Look-ups: at most so many answers are kept in one worker process, the least used are dropped first."""


class Delivery(Area):
    """How requests are made, in all lanes, and the topics of their results."""

    attempt_timeout_s: Seconds = 2
    """Total time of one attempt, from looking up the name to the last byte that is read of the response. An endpoint that has
    suddenly not answered is left to the retry lane for twice as long."""
    lane_deadline_s: Seconds = 3
    """How long deliveries may wait for their own endpoint's answers, or for its `max_per_second`, when all others of the
    micro-batch have been served. Then they are handed over to the retry lane, so that nobody else waits for them."""
    patience_s: Seconds = 0.5
    """How long a micro-batch waits for answers, at most, when nothing else is left to do; an endpoint is waited for as long as
    it usually takes. Then it ends without them, so that nobody else waits: the attempts go on, and what fails goes on in the
    retry lane. With as much as `attempt_timeout_s` it waits for all."""
    max_attempts: Annotated[int, Field(gt=0)] = 3
    """At most so many attempts within the lane's deadline."""
    retry_wait_s: Seconds = 0.2
    """Wait before the second attempt; doubles with each further one, ±20 %."""
    max_retry_after_s: Seconds = 86_400
    """An endpoint's longer `Retry-After` counts as this. What it asks for beyond the lane's deadline is not tried again within
    the lane."""
    max_in_flight: Annotated[int, Field(gt=0)] = 256
    """At most so many requests under way in one worker process, and as many that go on beside a micro-batch."""
    max_in_flight_per_endpoint: Annotated[int, Field(gt=0)] = 16
    """At most so many requests under way to one endpoint from one worker process."""
    stop_within_s: Seconds = 20
    """How long attempts that are under way have to end when the job is to stop. With less than an endpoint's `timeout_s`, what
    is broken off is made again by the next start. Whoever stops the process waits for longer than this and a micro-batch."""
    max_connections: Annotated[int, Field(ge=0)] = 0
    """At most so many open connections in one worker process, idle ones included; beyond it the longest unused are closed.
    0: half of the files that the process may open (`ulimit -n`)."""
    max_connections_per_host: Annotated[int, Field(ge=0)] = 128
    """At most so many connections to one host, whoever's endpoints are there, over all workers: each has its share, one of
    `spark.parallelism` or of the executors' cores, and at least one. 0: hosts have no bounds, this one and the next."""
    max_per_second_per_host: Annotated[float, Field(gt=0)] = 2000
    """At most so many requests a second to one host, whoever's endpoints are there, over all workers."""
    unlimited_hosts: tuple[str, ...] = ()
    """Hosts that are meant to get more than that, such as a gateway of your own. `*.example.com` stands for all below it."""
    allow_networks: tuple[str, ...] = ()
    """For development: networks (CIDR) that the guard lets through although they are not public, such as 127.0.0.0/8."""
    allow_http: bool = False
    """For development: endpoints may be plain http."""
    allow_ports: tuple[int, ...] = (80, 443, 8080, 8443)
    """Ports that an endpoint's URL may name. Empty, for development: any."""
    webhook_origin: Annotated[str, Field(pattern=r"^([A-Za-z0-9]([A-Za-z0-9.-]{0,253}[A-Za-z0-9])?)?$")] = ""
    """As whom the platform sends, a DNS name such as `fanout.example.com`: the receivers of endpoints with `validation` are
    asked to permit it. Empty: none can be asked, and nothing is sent to those endpoints."""
    result_partitions: Annotated[int, Field(gt=0)] = 6
    """Partitions of the topics below, where the job has to create them."""
    attempts_topic: str = "fanout.attempts"
    """Topic of the delivery log: an entry for each attempt, and for each skip and postponement without one, those of one
    endpoint sharing rows; and the receipts."""
    dead_letter_topic: str = "fanout.dead-letters"
    """Topic of what could not be delivered, with the whole story."""
    rejected_topic: str = "fanout.rejected-events"
    """Topic, for the operator, of records that are not events."""
    retries_topic: str = "fanout.retries"
    """Topic of what waits for its next attempt, on its way to the retry lane, and of what came of it. No retention may be
    shorter than the retry lane may stand still."""

    @pydantic.field_validator("allow_networks", "allow_ports", "unlimited_hosts", mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


class Batch(Area):
    """The batch lane's state and pace. How requests are made is set in the area `delivery`."""

    shards: Annotated[int, Field(gt=0, le=1024)] = 4
    """Parts of the state; twice the number of executor cores. `spark.parallelism` tasks work on them, each on its own ones one
    after another. A checkpoint keeps the number with which it began: the lane refuses to start with another one."""
    trigger_interval_s: Annotated[float, Field(gt=0)] = 0.5
    """Time from one micro-batch to the next; longer, if one takes longer. An endpoint whose `max_wait_s` is at most twice this
    leaves with each, so by up to its whole wait early; any other by up to twice this early, and by its endpoint's own part of a
    tenth of `max_wait_s`. A batch is late by as much as two micro-batches take longer than that: the one in which it becomes
    due, and the one that sends it."""
    max_events_per_micro_batch: Annotated[int, Field(gt=0)] = 100_000
    """At most so many events in a micro-batch of this lane. It matters when the lane is behind: more of them leave in fewer and
    larger batches, for less CPU, but they take memory, and a change is in effect later by as long as they take: 0.4 GB a worker
    for 100,000 events of 450 bytes and two tasks, 0.9 GB for 400,000 (docs/adr/0030-more-at-a-time.md)."""
    ticks_topic: str = "fanout.ticks"
    """Topic of one partition in which the job wakes itself when a batch is due and no event comes, and each quiet 45 s. Must
    match no `source.topic_pattern`."""


class Retry(Area):
    """The retry lane's state and pace. Schedule, greatest age and timeout are each endpoint's own."""

    shards: Annotated[int, Field(gt=0, le=1024)] = 4
    """Parts of the state, as `batch.shards`. Each takes 0.06 CPU seconds of a micro-batch: on two cores, two are enough."""
    trigger_interval_s: Annotated[float, Field(gt=0)] = 1
    """Time from one micro-batch to the next; longer, if one takes longer. Each takes CPU from the other lanes, while there is
    something for this one to do; what an endpoint takes in order waits for one."""
    settle_s: Seconds = 1
    """How long a micro-batch waits for answers. What takes longer is reported by a later one."""
    probe_interval_s: Seconds = 5
    """How long an endpoint that fails is left alone before it is asked again, by one delivery; doubles while it fails."""
    max_probe_interval_s: Seconds = 60
    """The longest such time."""
    max_turn: Annotated[int, Field(gt=0, le=10_000)] = 256
    """At most so many deliveries to one endpoint leave together. An endpoint that answers again begins with one; it doubles."""
    max_pending: Annotated[int, Field(gt=0)] = 200_000
    """At most so many events wait for one endpoint. What comes beyond that becomes a dead letter, reason `no_room`."""
    ticks_topic: str = "fanout.retry-ticks"
    """Topic in which the job wakes the lane, as `batch.ticks_topic`."""
    disable_after_s: Seconds = 432_000
    """An endpoint that has accepted nothing of what was sent to it for so long, and an eighth of it, is disabled; what waits
    for it goes on waiting. In the eighth, all lanes tell what they saw it accept. One that was enabled since is not. After half
    of this time in which nothing failed, or a probe's interval and two minutes where that is longer, it begins anew. The same
    for all lanes, where they are applications of their own."""


class Realtime(Area):
    """The real-time lane, for the topics of `source.realtime_pattern` (docs/adr/0040)."""

    batch_s: Annotated[float, Field(ge=5)] = 300
    """Length of a batch. Between two of them nothing is delivered for some 0.3 s; a new topic is found earlier."""
    behind_after_s: Seconds = 5
    """With records older than this the lane has fallen behind: it catches up in micro-batches, and comes back by itself."""
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Port of the driver at which the lane's workers report and hear of changes; 0 takes any that is free."""


class Spark(Area):
    """The Spark application."""

    master: str = "local[2,4]"
    """Where it runs. `local[N,F]` is this machine with N worker processes; a task is tried up to F times."""
    app_name: str = "fanout"
    """The application's name."""
    checkpoint: str = ".fanout/checkpoint"
    """Folder or URL that holds each lane's progress. Losing it means reading from `starting_offsets` again."""
    checkpoint_lease: Annotated[str, Field(pattern=r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?$")] = ""
    """Name of a Lease of Kubernetes, in the driver pod's namespace. A driver uses the checkpoint only while it holds the Lease,
    and a second driver waits. Empty: none; a folder's own file locks keep a second driver out."""
    parallelism: Annotated[int, Field(gt=0)] = 2
    """Tasks of a micro-batch, however many topics there are. Give it the number of executor cores."""
    trigger_interval_s: Annotated[float, Field(ge=0)] = 0
    """Pause between micro-batches; 0 begins the next as soon as the last has ended."""
    driver_memory: str = "2g"
    """Heap of the driver's JVM."""
    ui: bool = False
    """Whether to serve Spark's own web UI."""
    conf: dict[str, SecretStr] = {}
    """Any other Spark configuration. Never shown by us, but Spark writes it on the JVM's command line: give secrets to Spark in
    another way."""

    _from_text = pydantic.field_validator("conf", mode="before")(pairs)


class Scaling(Area):
    """Bounds and times by which the job scales its executors with the lag (docs/operations.md#scale-executors)."""

    min_executors: Annotated[int, Field(gt=0)] = 1
    """The fewest executors, and the number at the start."""
    max_executors: Annotated[int, Field(ge=0)] = 0
    """The most executors; 0: the number is fixed. Otherwise a micro-batch has as many tasks as its executors have cores, not
    `spark.parallelism`, and its bound of events holds for each executor."""
    drain_within_s: Seconds = 60
    """More executors are wanted when the lag of a lane would not drain within this time."""
    scale_in_after_s: Seconds = 60
    """Fewer executors are wanted after they would have sufficed for this time."""
    interval_s: Seconds = 5
    """The job asks Kafka for the lag, and decides the number of executors, once in this time."""

    @property
    def is_on(self) -> bool:
        """Whether the number changes at all."""
        return self.max_executors > 0


class Logs(Area):
    """What the job writes to standard error."""

    level: Annotated[str, Field(pattern="^(DEBUG|INFO|WARNING|ERROR)$")] = "INFO"
    """DEBUG, INFO, WARNING or ERROR."""
    format: Annotated[str, Field(pattern="^(text|json)$")] = "text"
    """`text` for people, `json` for machines: one object a line."""
    attempt_sample: Annotated[float, Field(ge=0, le=1)] = 0
    """Share of all attempts that the workers log, 0 to 1. Failed ones are logged besides, up to 10 a second and worker."""


class Metrics(Area):
    """How the job is seen from outside: metrics for Prometheus, and probes."""

    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Port of `/metrics`, `/healthz` and `/readyz`; 0 serves none."""
    host: str = "127.0.0.1"
    """Address to serve on; `0.0.0.0` in a container."""
    lag_interval_s: Seconds = 10
    """How often Kafka is asked how many records wait."""
    stalled_after_s: Seconds = 300
    """Unhealthy after so long with records waiting and none committed; must be longer than any micro-batch."""


class Settings(Area):
    """Everything that can be set."""

    database: Database = Database()
    keys: Keys = Keys()
    kafka: Kafka = Kafka()
    source: Source = Source()
    snapshot: Snapshot = Snapshot()
    delivery: Delivery = Delivery()
    batch: Batch = Batch()
    retry: Retry = Retry()
    archive: Archive = Archive()
    operations: Operations = Operations()
    realtime: Realtime = Realtime()
    spark: Spark = Spark()
    scaling: Scaling = Scaling()
    logs: Logs = Logs()
    metrics: Metrics = Metrics()
    api: Api = Api()


def known_names() -> list[str]:
    """Return `area.field` of every setting."""
    return [f"{area}.{field}" for area, model in areas().items() for field in model.model_fields]


def areas() -> dict[str, type[Area]]:
    """Return the class of each area by its name."""
    return {name: type(getattr(Settings(), name)) for name in Settings.model_fields}


def meaning(name: str) -> str:
    """Return the one-line documentation of the setting `area.field`."""
    area, _, field = name.partition(".")
    return areas()[area].model_fields[field].description or ""
