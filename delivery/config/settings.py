"""Define all settings: each area's names, defaults, bounds and meanings. Neighbouring files `…_settings.py` define some areas.

`delivery.config.settings_loader` reads the settings at the start. Executors never get all settings, only small frozen values
made from the settings. Executors that look up the registry themselves also get the areas `database` and `keys`.
docs/configuration.md is generated from the docstrings of the areas and their fields.
"""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic
from pydantic import Field, SecretStr

from delivery.config.oidc_settings import OidcSettings
from delivery.config.scaling_settings import ScalingSettings
from delivery.config.schema_settings import SchemaRegistrySettings
from delivery.config.service_settings import ApiSettings, ArchiveSettings, OperationsSettings
from delivery.config.setting_types import Area, Matching, Seconds, TopicPattern, key_map, pairs, pattern_or_none, with_one_group

_DNS_NAME = Matching(
    r"([A-Za-z0-9]([A-Za-z0-9.-]{0,253}[A-Za-z0-9])?)?",
    "must be a DNS name such as fanout.example.com, without a scheme and a path",
)
_CHECKPOINT = Matching(
    r"\s*\S[\s\S]*", "is empty: name a folder such as .fanout/checkpoint, or a URL such as s3a://bucket/fanout"
)
_LEASE_NAME = Matching(
    r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?", "must be the name of a Lease: lower-case letters, digits, `-` and `.`"
)


class DatabaseSettings(Area):
    """Postgres, version 15 or later: the registry and the archive."""

    url: SecretStr = SecretStr("postgresql://fanout@127.0.0.1:5432/fanout")
    """libpq connection URL. TLS and all other libpq options go into its query."""
    connect_timeout_s: Seconds = 5
    """Longest time for opening one connection. libpq takes whole seconds: a fraction is cut off, and below 2 counts as 2."""
    statement_timeout_s: Annotated[float, Field(ge=0.001, le=2_147_483)] = 30
    """Longest time of one statement before Postgres cancels it: 1 ms to 24 days. `fanout apply` and `fanout db migrate` have no
    limit."""


class KeysSettings(Area):
    """The key ring that seals customers' secrets in Postgres (AES-256-GCM)."""

    ring: dict[str, SecretStr] = {}
    """Key id → 32 bytes in base64. Every key opens secrets; only the key `active` seals secrets. In the environment:
    `id1=base64,id2=base64`."""
    active: str = ""
    """The id of the key that seals new secrets. Empty: the only key of the ring."""

    _from_text = pydantic.field_validator("ring", mode="before")(key_map)


class KafkaSettings(Area):
    """Kafka 3.6 or later. `spark_options` is for Spark's client, `librdkafka_options` for librdkafka, all else for both."""

    bootstrap_servers: str = "127.0.0.1:9092"
    """`host:port`, several separated by commas."""
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
    sasl_mechanism: Literal["", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = ""
    """PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512, with `sasl_username` and `sasl_password`. Empty: no SASL."""
    sasl_username: str = ""
    """User name for SASL."""
    sasl_password: SecretStr = SecretStr("")
    """Password for SASL."""
    ssl_ca_file: str = ""
    """PEM file of the trusted authorities; empty: those of the system."""
    ssl_keystore_file: str = ""
    """PEM file with the client's private key, in PKCS#8 and without a password, and its certificates, for mutual TLS."""
    spark_options: dict[str, SecretStr] = {}
    """Any other option of the Java client, which Spark uses. Passed on with the prefix `kafka.` (`spark_options."client.rack" =
    "a"`). `isolation.level` also holds for tasks that read with librdkafka. Never shown."""
    librdkafka_options: dict[str, SecretStr] = {}
    """Any other option of librdkafka, the client of the workers and of all processes beside Spark. Never shown."""

    _from_text = pydantic.field_validator("spark_options", "librdkafka_options", mode="before")(pairs)


class SourceSettings(Area):
    """The topics that carry events, and the fields of a plain JSON event that hold its attributes."""

    topic_pattern: TopicPattern = r"events\..+"
    """Regular expression for the whole name of each topic to read, in the syntax that Java and Python share (docs/adr/0037).
    New topics that match are found while the job runs. The pattern must not match a topic to which the job writes."""
    realtime_pattern: Annotated[str, pydantic.AfterValidator(pattern_or_none)] = ""
    """Regular expression, in the syntax of `topic_pattern`, for the whole name of each topic of the real-time lane. The topic
    must also match `topic_pattern`. The lane delivers in milliseconds, with one task and one worker process for each partition
    of these topics. Records need right times (`realtime.behind_after_s`). Empty: there is no real-time lane."""
    topic_prefix: str = "events."
    """Prefix that is removed from a topic's name to get the event type, if the event itself has none."""
    starting_offsets: Literal["earliest", "latest"] = "earliest"
    """The records at which a lane's first start begins. `earliest`: the first record of each topic. `latest`: only records that
    come later. A topic that is found later is always read from its first record, and so is the retries topic."""
    max_events_per_batch: Annotated[int, Field(gt=0)] = 20_000
    """Most events in a micro-batch of the direct lane, and of the real-time lane while it catches up. Also most records in a
    micro-batch of the retry lane. The number bounds the memory, and the time until a change of the registry takes effect."""
    max_event_bytes: Annotated[int, Field(gt=0, le=700_000)] = 262_144
    """Most bytes of a record's value and headers. A larger record goes to the topic of rejected records. A dead letter carries
    the event in base64, which adds a third, and must fit into Kafka's 1 MiB. So a payload that is not JSON has a second limit:
    with the headers, the JSON string that stands for it may have at most 700,000 bytes."""
    tenant_of_topic: Annotated[str, pydantic.AfterValidator(with_one_group)] = ""
    """Python regular expression for topics that belong to one tenant each. Its one group is the tenant's id, as in
    `events\\.([^.]+)\\..+`. A topic that matches carries events of its tenant only; events of other
    tenants are rejected. A topic that does not match belongs to no single tenant."""
    id_field: str = "id"
    """Plain JSON: dotted path of the event id. If an event has no id, topic, partition and offset form the id."""
    type_field: str = "type"
    """Plain JSON: dotted path of the event type. If an event has none, its type is the topic's name without `topic_prefix`."""
    tenant_field: str = "tenant_id"
    """Plain JSON: dotted path of the tenant id; an event without a tenant id is rejected."""
    sub_tenant_field: str = "sub_tenant_id"
    """Plain JSON: dotted path of the sub-tenant id."""
    time_field: str = "time"
    """Plain JSON: dotted path of the event's time, RFC 3339. An event without a time gets the time of Kafka's append."""
    invalid_time: Literal["", "passed", "rejected"] = ""
    """Treatment of events whose time is not an RFC 3339 time. Empty: reject CloudEvents, and pass plain JSON. `rejected`:
    reject both. `passed`: pass both. A rejected event has the reason `bad_attribute`. A passed event gets the time at which
    Kafka appended the record."""
    reused_ids: Literal["passed", "rejected", "told_apart"] = "passed"
    """Treatment of an event with the source and id of an earlier event, but another payload. `passed`: both events are
    delivered with one `webhook-id`, so receivers ignore the second as a repeat. `rejected`: the second event goes to the
    rejected records as `reused_id`, if the worker remembers the first and both are of one tenant. `told_apart`: the payload is
    part of every `webhook-id`, so the two events have different ones."""
    batch_records: Literal["rejected", "taken_apart"] = "rejected"
    """Treatment of records with `content-type: application/cloudevents-batch+json`. `rejected`: they are rejected as
    `unsupported`. `taken_apart`: the direct or the real-time lane writes each event as a record of its own into the same
    partition. Other consumers of the topic get the batch and its events. The job needs the right to write to the topics. If
    Kafka refuses an event for good, the batch is rejected as `not_written`. Applications with different lanes need the same
    value (docs/adr/0049-batch-records-taken-apart.md)."""


class SnapshotSettings(Area):
    """The way in which workers get the registry: by broadcasts or by look-ups (docs/adr/0007-broadcast-or-look-up.md)."""

    source: Literal["broadcast", "lookup"] = "broadcast"
    """`broadcast`: the driver follows the registry, and each worker has all of it. `lookup`: the workers ask Postgres for the
    rows that their events need. For this the workers get `database.url` and `keys.ring`. The real-time lane needs
    `broadcast`."""
    poll_interval_s: Seconds = 1
    """Broadcast: time between two requests for changes when no notification comes."""
    max_age_s: Seconds = 3600
    """Broadcast: when Postgres has not answered for longer than this, delivery pauses until Postgres answers again."""
    lookup_ttl_s: Seconds = 30
    """Look-ups: time for which a worker keeps an answer. This is the longest time until a change of the registry takes
    effect. Only retries of a deleted tenant's events may go on for 30 s more."""
    lookup_max_answers: Annotated[int, Field(gt=0)] = 100_000
    """Look-ups: most entries in each of a worker's three caches: answers that hold for all tenants, answers for one tenant, and
    registered tenants. The least recently used are dropped first."""


class DeliverySettings(Area):
    """Requests to endpoints, in all lanes, and the topics of their results."""

    attempt_timeout_s: Seconds = 2
    """Total time of one attempt in a fast lane (direct, batch or real-time). It begins with the DNS look-up, and ends with the
    last byte of the response that is read. In the retry lane the endpoint's `timeout_s` holds. When an endpoint stops
    answering, the fast lanes send it nothing for twice this time. Its deliveries go to the retry lane."""
    lane_deadline_s: Seconds = 3
    """Queue timeout. It begins when each delivery that is left in the micro-batch waits for its own endpoint: for answers to
    earlier requests, or for `max_per_second`. When the timeout ends, these deliveries are postponed to the retry lane, and the
    micro-batch ends."""
    patience_s: Seconds = 0.5
    """Response deadline. A micro-batch with nothing else to do waits for answers: for each endpoint as long as its answers
    usually take, and at most this long. Then the attempts continue in the background. If such an attempt fails, its delivery
    goes to the retry lane without a quick retry. The wait is longer while hardly any endpoint answers, or while the background
    takes no more attempts. From `attempt_timeout_s` on there is no deadline, and all quick retries are made."""
    max_attempts: Annotated[int, Field(gt=0)] = 3
    """Most attempts at a delivery in a fast lane (direct, batch or real-time). When a micro-batch has nothing else to do, it
    leaves further attempts to the retry lane."""
    retry_wait_s: Seconds = 0.2
    """Wait before the second attempt in a fast lane. The wait doubles with each further attempt, ±20 %."""
    max_retry_after_s: Seconds = 86_400
    """Longest `Retry-After` that is honoured. A longer one counts as this time. A delivery whose `Retry-After` ends after
    `lane_deadline_s` is postponed to the retry lane."""
    logged_response_bytes: Annotated[int, Field(ge=0, le=1024)] = 1024
    """Most bytes of a response body that the attempts topic and the archive keep, for attempts of `logged_responses`. They are
    for customers who look for the cause. Secrets of the endpoint and texts that look like credentials become `***`. 0: none. A
    dead letter keeps 1 KiB of each response, whatever this setting."""
    logged_responses: Literal["failed", "all"] = "failed"
    """Attempts for which the attempts topic and the archive keep headers and body of the response: `failed`, or `all`. With
    `all`, an accepted attempt takes up to 2 KiB more in Kafka and Postgres."""
    max_in_flight: Annotated[int, Field(gt=0)] = 256
    """Most requests in flight from a task of the direct or batch lane; from a task of the real-time lane, twice as many. In
    addition, a worker process may have up to this many background attempts and this many requests of the retry lane."""
    max_in_flight_per_endpoint: Annotated[int, Field(gt=0)] = 16
    """Most requests in flight from one task to an endpoint without a `max_in_flight` of its own."""
    stop_within_s: Seconds = 20
    """Time for attempts in flight to end when the job stops. The next start repeats an attempt that is cut off. So set this
    time to at least the longest `timeout_s` of an endpoint. The process manager must allow this time and one micro-batch."""
    max_connections: Annotated[int, Field(ge=0)] = 0
    """Most open connections of one worker process, idle ones included; beyond that the least recently used are closed.
    0: half of the files that the process may open (`ulimit -n`), at most 16,384."""
    max_connections_per_host: Annotated[int, Field(ge=0)] = 128
    """Most connections to one host over all workers and all customers. Each worker has an equal share, but at least one. The
    number of workers is `spark.parallelism`, or with scaling the executors' cores, or in the real-time lane the partitions. 0:
    no limits for hosts, and `max_per_second_per_host` has no effect."""
    max_per_second_per_host: Annotated[float, Field(gt=0)] = 2000
    """Most requests a second to one host over all workers and all customers."""
    unlimited_hosts: tuple[str, ...] = ()
    """Hosts without `max_connections_per_host` and `max_per_second_per_host`, such as a gateway of your own. `*.example.com`
    stands for all names below `example.com`."""
    allow_networks: tuple[str, ...] = ()
    """For development: networks (CIDR) that the guard allows although they are not public, such as 127.0.0.0/8."""
    allow_http: bool = False
    """For development: if true, endpoints may use plain http."""
    allow_ports: tuple[int, ...] = (80, 443, 8080, 8443)
    """Ports that an endpoint's URL may name. Empty, for development: any port."""
    webhook_origin: Annotated[str, _DNS_NAME] = ""
    """The platform's DNS name as a sender, such as `fanout.example.com`. Receivers of endpoints with `validation` are asked to
    permit deliveries from this name. Empty: no receiver can be asked, and nothing is sent to endpoints without a permission."""
    result_partitions: Annotated[int, Field(gt=0)] = 6
    """Partitions of each new topic of results: attempts, dead letters, rejected records, retries."""
    attempts_topic: str = "fanout.attempts"
    """Topic of the delivery log: an entry for each attempt, and for each skip and postponement without an attempt. One record
    has many entries of one endpoint. The topic also has the offset receipts: records of the offsets that a lane has handled."""
    dead_letter_topic: str = "fanout.dead-letters"
    """Topic of dead letters: deliveries that were given up, with their attempt history."""
    rejected_topic: str = "fanout.rejected-events"
    """Topic for the operator: rejected records, with the reason. They are delivered to nobody."""
    retries_topic: str = "fanout.retries"
    """Topic that the retry lane reads: deliveries that wait for their next attempt, reports of the lane's attempts, and other
    messages to the lane. The topic's retention must be longer than any standstill of the retry lane. Never rename the topic:
    the lane does not start with a checkpoint that has another name. Lanes that run as applications of their own must have the
    same value."""

    @pydantic.field_validator("allow_networks", "allow_ports", "unlimited_hosts", mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


class BatchSettings(Area):
    """The batch lane: its state, and the interval of its micro-batches. The area `delivery` configures the lane's requests."""

    shards: Annotated[int, Field(gt=0, le=1024)] = 4
    """Parts of the lane's state (shards). Use twice the number of executor cores. A micro-batch has `spark.parallelism` tasks,
    each of which handles several shards one after another. A checkpoint keeps its number of shards: the lane refuses to start
    with another number."""
    trigger_interval_s: Annotated[float, Field(gt=0)] = 0.5
    """Time from the start of one micro-batch to the next, or longer if a micro-batch takes longer. A batch leaves before
    `max_wait_s` has passed, for two reasons. (1) It may leave up to two intervals before it is due. (2) It is due earlier by a
    time that is fixed for its endpoint: at most a tenth of `max_wait_s`, and at most 10 s. If `max_wait_s` is at most two
    intervals, events leave in the micro-batch that reads them. A batch leaves late if micro-batches take longer than the
    interval. The delay is the excess of two micro-batches: the one in which the batch becomes due, and the one that sends
    it."""
    max_events_per_micro_batch: Annotated[int, Field(gt=0)] = 100_000
    """Most events in a micro-batch of this lane. The number matters when the lane is behind. A larger number makes fewer and
    larger batches, and needs less CPU and more memory. A change of the registry then takes effect later. 100,000 events of
    450 bytes take 0.4 GB a worker with two tasks, 400,000 take 0.9 GB (docs/adr/0030-more-at-a-time.md)."""
    ticks_topic: str = "fanout.ticks"
    """Topic with one partition in which the job wakes this lane. The job does so when a batch is due and no event comes, and
    after each 45 s without a micro-batch. The topic must not match `source.topic_pattern`."""


class RetrySettings(Area):
    """The retry lane: its state, and the interval of its micro-batches. Each endpoint has its own schedule and timeout."""

    shards: Annotated[int, Field(gt=0, le=1024)] = 4
    """Parts of the lane's state (shards), with the rules of `batch.shards`. Each shard takes 0.06 CPU seconds of a micro-batch.
    So on two cores use two shards, not four."""
    trigger_interval_s: Annotated[float, Field(gt=0)] = 1
    """Time from the start of one micro-batch to the next, or longer if a micro-batch takes longer. While the lane has work,
    each micro-batch takes CPU from the other lanes. Ordered deliveries to an endpoint need at least one micro-batch each."""
    settle_s: Seconds = 1
    """Most seconds for which a micro-batch of the retry lane waits for responses. A later micro-batch reports the responses
    that come later. With `fanout run --once`, a micro-batch waits for all responses."""
    probe_interval_s: Seconds = 5
    """Wait before a failing endpoint is probed with one delivery. The wait doubles while the endpoint fails."""
    max_probe_interval_s: Seconds = 60
    """The longest wait between two probes."""
    max_turn: Annotated[int, Field(gt=0, le=10_000)] = 256
    """Most deliveries to one endpoint that leave together. An endpoint that answers again begins with one delivery, and the
    number doubles with each success."""
    max_pending: Annotated[int, Field(gt=0)] = 200_000
    """Most events that wait in this lane for one endpoint. Further events become dead letters, reason `no_room`. Redriven
    events become dead letters when more than half of this number would wait."""
    ticks_topic: str = "fanout.retry-ticks"
    """Topic in which the job wakes this lane, with the rules of `batch.ticks_topic`. Never rename the topic: the lane does not
    start with a checkpoint that has another name."""
    disable_after_s: Seconds = 432_000
    """An endpoint that has failed for this time and a further eighth of it, and accepted nothing meanwhile, is disabled. Its
    events keep waiting. The eighth is added because workers that do not know the failures of other workers report an acceptance
    only once in an eighth of this time. Two exceptions: (1) An endpoint that was enabled within this time is not disabled. (2)
    After a silence the count begins again. A silence is a time without a failure, longer than half of this time, and longer
    than `max_probe_interval_s` plus two minutes. Lanes that run as applications of their own need the same value."""


class RealtimeSettings(Area):
    """The real-time lane, for the topics of `source.realtime_pattern` (docs/adr/0040)."""

    batch_s: Annotated[float, Field(ge=5)] = 300
    """Length of a micro-batch of this lane. Delivery stops for some 0.3 s between two micro-batches. A new topic or partition
    ends a micro-batch early."""
    behind_after_s: Seconds = 5
    """Age of a record, by its time in Kafka, from which the lane delivers in short micro-batches until it has caught up. The
    topics need `message.timestamp.type=LogAppendTime`, or producers that write the present time by a right clock."""
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Port of the driver to which the lane's workers report, and from which they get the registry; 0 takes any free port."""


class SparkSettings(Area):
    """The Spark application."""

    master: str = "local[6,4]"
    """Spark master. `local[N,F]` is this machine with N tasks at once and up to F tries of a task. A task that waits for
    responses takes a slot and no CPU. So N is the number of lanes times `parallelism`: with fewer, lanes wait for others."""
    app_name: str = "fanout"
    """The application's name."""
    checkpoint: Annotated[str, _CHECKPOINT] = ".fanout/checkpoint"
    """Folder or URL with each lane's progress and state. If its content is lost, the lanes begin without state, at
    `source.starting_offsets`. The retry lane begins at the first record of its topic."""
    checkpoint_lease: Annotated[str, _LEASE_NAME] = ""
    """Name of a Kubernetes Lease in the driver pod's namespace. A driver uses the checkpoint only while it holds the Lease, and
    a second driver waits. Empty: no Lease; file locks in the folder keep a second driver out."""
    parallelism: Annotated[int, Field(gt=0)] = 2
    """Tasks of a micro-batch, for any number of topics. Set it to the number of executor cores."""
    trigger_interval_s: Annotated[float, Field(ge=0)] = 0
    """Time from one micro-batch of the direct lane to the next; 0 starts the next as soon as the last has ended. A longer time
    saves CPU and adds about half of itself to the latency. With 500 topics and 200 events a second, 0.33 here and 1 in
    `batch.trigger_interval_s` save two thirds of the JVM's CPU (docs/benchmarks/2026-11-29-without-plans.md)."""
    driver_memory: str = "2g"
    """Heap of the driver's JVM."""
    ui: bool = False
    """If true, Spark serves its own web UI."""
    conf: dict[str, SecretStr] = {}
    """Any other Spark configuration. The platform never shows these values, but Spark writes them on the JVM's command line. So
    pass secrets to Spark in another way."""

    _from_text = pydantic.field_validator("conf", mode="before")(pairs)


class LogsSettings(Area):
    """The log on standard error: of the job and its workers, of `fanout archive`, of the API and of the commands."""

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """DEBUG, INFO, WARNING or ERROR."""
    format: Literal["text", "json"] = "text"
    """`text` for people, `json` for machines: one object a line."""
    attempt_sample: Annotated[float, Field(ge=0, le=1)] = 0
    """Share of all attempts that the workers log at level INFO, 0 to 1. In addition, failed attempts are logged, up to 10 a
    second and worker."""


class MetricsSettings(Area):
    """The HTTP port for Prometheus metrics and probes, and the time after which a lane counts as stalled."""

    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Port of `/metrics`, `/healthz` and `/readyz`; 0 serves none."""
    host: str = "127.0.0.1"
    """Address to serve on. In a container, set `0.0.0.0` (IPv4) or `::` (IPv6). `::` serves IPv4 too if the system lets one
    socket take both."""
    lag_interval_s: Seconds = 10
    """Time between two requests to Kafka for the lag; with scaling, `scaling.interval_s` holds instead."""
    stalled_after_s: Seconds = 300
    """The job is unhealthy when nothing was committed for this time although records wait or a lane starts. When the job must
    stop, a micro-batch that does not end within this time is interrupted, and runs again at the next start. The time must be
    longer than any micro-batch."""


class Settings(Area):
    """All settings of the platform, one field for each area."""

    database: DatabaseSettings = DatabaseSettings()
    keys: KeysSettings = KeysSettings()
    kafka: KafkaSettings = KafkaSettings()
    source: SourceSettings = SourceSettings()
    schema_registry: SchemaRegistrySettings = SchemaRegistrySettings()
    snapshot: SnapshotSettings = SnapshotSettings()
    delivery: DeliverySettings = DeliverySettings()
    batch: BatchSettings = BatchSettings()
    retry: RetrySettings = RetrySettings()
    archive: ArchiveSettings = ArchiveSettings()
    operations: OperationsSettings = OperationsSettings()
    realtime: RealtimeSettings = RealtimeSettings()
    spark: SparkSettings = SparkSettings()
    scaling: ScalingSettings = ScalingSettings()
    logs: LogsSettings = LogsSettings()
    metrics: MetricsSettings = MetricsSettings()
    api: ApiSettings = ApiSettings()
    oidc: OidcSettings = OidcSettings()


def known_names() -> list[str]:
    """Return the names of all settings, each as `area.field`."""
    return [f"{area}.{field}" for area, model in areas().items() for field in model.model_fields]


def areas() -> dict[str, type[Area]]:
    """Return the class of each area by its name."""
    return {name: type(getattr(Settings(), name)) for name in Settings.model_fields}


def meaning(name: str) -> str:
    """Return the docstring of the setting `name`, which is `area.field`."""
    area, _, field = name.partition(".")
    return areas()[area].model_fields[field].description or ""
