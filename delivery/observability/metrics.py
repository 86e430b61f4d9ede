"""Declare every metric with its meaning. Labels come from closed sets and from the operator's topics, never from tenants.

Runs on the driver, in `fanout archive` and in `fanout serve`. Workers have no metrics: they send their numbers to the driver as
counters (docs/adr/0008).
docs/metrics.md is generated from this file.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections import Counter as Count
from collections.abc import Iterator, Mapping

import prometheus_client
from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from delivery.model import OutcomeKind
from delivery.webhooks.results.counters import LATENCY_BUCKETS_S, NONE, Counters


class _MergedHistogram(Collector):
    """A histogram that adds whole bucket counts; the histogram of prometheus_client adds one observation at a time."""

    def __init__(self, name: str, meaning: str) -> None:
        self._name, self._meaning = name, meaning
        self._adding = threading.Lock()  # each lane adds on its own thread
        self._by_lane: Mapping[str, tuple[Count[float], float]] = {}
        prometheus_client.REGISTRY.register(self)

    def add(self, lane: str, counts: Count[float], sum_: float) -> None:
        with self._adding:
            before, sum_before = self._by_lane.get(lane, (Count(), 0.0))
            # A new mapping, so that a scrape on another thread sees either all new counts or none.
            self._by_lane = {**self._by_lane, lane: (before + counts, sum_before + sum_)}

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._meaning, labels=["lane"])
        for lane, (counts, sum_) in self._by_lane.items():
            running = itertools.accumulate(counts[bound] for bound in LATENCY_BUCKETS_S)
            buckets = [
                ("+Inf" if bound == math.inf else str(bound), count)
                for bound, count in zip(LATENCY_BUCKETS_S, running, strict=True)
            ]
            family.add_metric([lane], buckets=buckets, sum_value=sum_)
        yield family


RECORDS = Counter(
    "fanout_records",
    "Records handled in committed micro-batches: events and rejected records. The batch lane includes its wake-ups. The retry "
    "lane counts postponed deliveries, reports of its attempts and wake-ups, a large record once for each 4 KiB. The "
    "real-time lane counts records when its tasks read them.",
    ["lane"],
)
REJECTED = Counter(
    "fanout_rejected", "Records that a lane rejected, by reason: they are in the rejected topic.", ["lane", "reason"]
)
DELIVERIES = Counter(
    "fanout_deliveries",
    "Deliveries by outcome (delivered, dead_lettered, skipped; postponed: they wait in the retry lane) and reason.",
    ["lane", "outcome", "reason"],
)
BATCHES = Counter(
    "fanout_batches",
    "Batches that were sent, by cause: the bound that they reached (count, bytes, time), or redrive (a redrive or a replay). A "
    "retried batch counts again.",
    ["lane", "reason"],
)
ATTEMPTS = Counter("fanout_attempts", "Requests to endpoints by error class; `none`: accepted.", ["lane", "error_class"])
RETRIES = Counter("fanout_retries", "Attempts that were not a delivery's first.", ["lane"])
LATENCY_SECONDS = _MergedHistogram(
    "fanout_latency_seconds", "Time from Kafka's append of an event to the endpoint's response, for accepted deliveries."
)
IN_FLIGHT_PEAK = Gauge(
    "fanout_in_flight_peak",
    "Most requests in flight at once from the lane in one worker process, in the last micro-batch; at most "
    "delivery.max_in_flight. The real-time lane counts the records of each second alone.",
    ["lane"],
)
PENDING_EVENTS = Gauge(
    "fanout_pending_events",
    "Events that wait for their batch (batch) or next attempt (retry), after the last micro-batch.",
    ["lane"],
)
PENDING_BYTES = Gauge(
    "fanout_pending_bytes", "Bytes of the waiting events; in the batch lane, as they count towards a batch's bound.", ["lane"]
)
PENDING_OLDEST = Gauge(
    "fanout_pending_oldest_timestamp_seconds",
    "When the oldest waiting event came to the lane; 0: none waits.",
    ["lane"],
)
HELD_ENDPOINTS = Gauge(
    "fanout_held_endpoints",
    "Suppressed endpoints: the retry lane probes them or lets them recover slowly, and all their deliveries wait there.",
)
FAILING_ENDPOINTS = Gauge(
    "fanout_failing_endpoints",
    "Endpoints to disable, as the last micro-batch of the retry lane found: they accepted nothing for retry.disable_after_s "
    "and an eighth of it.",
)
PAUSED_TOPICS = Gauge(
    "fanout_paused_topics",
    "Topics that the lane leaves out because the schema registry gives no schema of their records. The records wait in Kafka.",
    ["lane"],
)
STATE_BYTES = Gauge("fanout_state_memory_bytes", "Memory of a lane's state in the JVM.", ["lane"])
STATE_ROWS = Gauge(
    "fanout_state_rows", "Rows of a lane's state: an index for each shard, and segments of many waiting events.", ["lane"]
)
MICRO_BATCH_SECONDS = Histogram(
    "fanout_micro_batch_seconds",
    "Time of a micro-batch with records, from the choice of its offsets to its commit.",
    ["lane"],
    buckets=(0.25, 0.5, 1, 2, 5, 10, 30, 60),
)
LAG_RECORDS = Gauge("fanout_lag_records", "Records in Kafka that no committed micro-batch has handled.", ["lane", "topic"])
EXECUTORS = Gauge(
    "fanout_executors",
    "Executors that are registered and get tasks. This and the next five metrics are set only while scaling.max_executors is "
    "above 0.",
)
EXECUTORS_WANTED = Gauge("fanout_executors_wanted", "Executors that the job wants for the current lag.")
SCALING_REASON = Gauge(
    "fanout_scaling_reason",
    "1 for the reason of the wanted number of executors, else 0: lag, at_maximum, at_partitions, idle, enough, unknown, "
    "holding (a lane is paused), kafka_away.",
    ["reason"],
)
DRAIN_SECONDS = Gauge(
    "fanout_drain_seconds",
    "Seconds until the present executors have drained the lag of the neediest lane; +Inf: never, or unknown.",
)
ARRIVAL = Gauge("fanout_arrival_per_second", "Records a second that arrive for a lane, averaged over 15 s.", ["lane"])
THROUGHPUT_OF_EXECUTOR = Gauge(
    "fanout_executor_throughput_per_second",
    "Records a second that one executor handled while the lane was behind; 0: not measured within 6 hours.",
    ["lane"],
)
SOURCE_UP = Gauge(
    "fanout_source_up",
    "1 if Kafka answered the last request for the lane's lag, else 0. `fanout archive` counts as the lane archive.",
    ["lane"],  # without a label, a process that never sets the metric would serve 0, and raise an alert
)
CPU_SECONDS = Counter(
    "fanout_cpu_seconds",
    "CPU time of all worker processes (workers), the driver's JVM (jvm) and the driver's Python (driver).",
    ["process"],
)
OWN_DELAY_SECONDS = Counter(
    "fanout_own_delay_seconds",
    "Time in which worker processes waited for their own machine (CPU, memory, a stall). It does not count against endpoints.",
    ["lane"],
)
WAITED_FOR_HOSTS = Counter(
    "fanout_waited_for_hosts",
    "Waits of requests for delivery.max_connections_per_host or delivery.max_per_second_per_host.",
    ["lane"],
)
REUSED_IDS = Counter(
    "fanout_reused_ids",
    "Events with the source and id of an earlier event and another payload. Receivers ignore them as repeats, unless "
    "source.reused_ids is told_apart. An estimate: each worker remembers at least the last 16,384 events that were due in the "
    "lane, and counts an event again if its micro-batch or its producer repeats it.",
    ["lane"],
)
INVALID_TIMES = Counter(
    "fanout_invalid_times",
    "Events whose time is no RFC 3339 time, and was replaced by the time of their record (source.invalid_time). Rejected "
    "events are in fanout_rejected_total as bad_attribute. Every lane that reads the topic counts the event.",
    ["lane"],
)
TAKEN_APART = Counter(
    "fanout_events_taken_apart",
    "Events of batch records that the lane wrote to their topic as records of their own (source.batch_records).",
    ["lane"],
)
CLOCK_AHEAD_SECONDS = Gauge(
    "fanout_clock_ahead_seconds",
    "Seconds by which the worker clock that differs most is ahead of the driver's clock; negative: behind. 0: no clock is "
    "more than 30 s ahead or 1 s behind.",
    ["lane"],
)
REGISTRY_REVISION = Gauge("fanout_registry_revision", "Revision of the registry that the job routes by.")
REGISTRY_CONFIRMED = Gauge(
    "fanout_registry_confirmed_timestamp_seconds",
    "When Postgres last confirmed the revision that the job routes by. Alert on the age of this time. The metric is absent "
    "before the first confirmation.",
    ["process"],  # `driver`: the only process that sets the metric. Without a label, the others would serve 0
)
REGISTRY_ROWS = Gauge(
    "fanout_registry_rows", "Rows of the snapshot that the job routes by: tenants, endpoints, subscriptions.", ["kind"]
)
REGISTRY_BROADCAST_BYTES = Gauge(
    "fanout_registry_broadcast_bytes",
    "Size of the newest full snapshot as it travels to each executor. Changes since then are not included.",
)
REGISTRY_QUARANTINED = Gauge("fanout_registry_quarantined_rows", "Quarantined rows of the registry: they cannot be used.")
EGRESS_BROKEN = Gauge(
    "fanout_egress_broken",
    "1 while hardly any endpoint can be reached. All lanes are paused then, and no endpoint is disabled.",
)
ENDPOINTS_DISABLED = Counter(
    "fanout_endpoints_disabled",
    "Endpoints that the job disabled in the registry, by reason: gone or failing.",
    ["reason"],
)
ARCHIVED = Counter(
    "fanout_archived",
    "Rows that `fanout archive` has written: dead_letters, attempts (deliveries that were not attempted included).",
    ["kind"],
)
ARCHIVE_LEFT_OUT = Counter(
    "fanout_archive_left_out",
    "Records that are not in the archive: malformed (unreadable), refused by Postgres (refused), dropped by Kafka before they "
    "were read (lost), or attempts of days that are not kept (expired).",
    ["reason"],
)
ARCHIVE_REDRIVEN = Counter("fanout_archive_redriven", "Dead letters of the archive that were enqueued for redelivery.")
ARCHIVE_NOTIFICATIONS = Counter("fanout_archive_told", "Operational events that `fanout archive` has published.")
ARCHIVE_QUOTAS = Gauge(
    "fanout_archive_quotas_reached",
    "Customers, or tenants, that have reached a quota: endpoints, subscriptions, consumers, dead_letters or events_per_day.",
    ["quota"],
)
ARCHIVE_REACHED = Gauge(
    "fanout_archive_reached_timestamp_seconds",
    "When Kafka appended the last archived record. While records wait, its age is the archive's delay.",
    ["topic"],
)
API_REQUESTS = Counter(
    "fanout_api_requests",
    "Requests to the HTTP API by path, method and class of the status (2xx, …); `none`: unknown path or method.",
    ["route", "method", "status"],
)
API_SECONDS = Histogram(
    "fanout_api_request_seconds",
    "Time from a request to the HTTP API to its answer; the wait of a long poll included.",
    ["route"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 30),
)
API_EVENTS = Counter("fanout_api_published_events", "Events published over HTTP that Kafka has confirmed.")
OIDC_KEY_REQUESTS = Counter(
    "fanout_oidc_key_requests", "Requests of the HTTP API for the keys of the OpenID Connect provider, by outcome.", ["outcome"]
)
API_POLLS_WAITING = Gauge("fanout_api_polls_waiting", "Polls that wait for a dead letter; at most api.max_polls.")
API_CONNECTIONS = Gauge(
    "fanout_api_connections_in_use", "Postgres connections in use by the HTTP API; at most api.max_connections."
)
ARCHIVE_REPLAYED = Counter(
    "fanout_archive_replayed", "Deliveries that replays have enqueued in the retry lane, single ones or all of a time range."
)
READY = Gauge(
    "fanout_ready",
    "1 if /readyz says that the lane is ready, else 0. `fanout archive` and `fanout serve` count as the lanes archive and api.",
    ["lane"],
)
REALTIME_CATCHING_UP = Gauge(
    "fanout_realtime_catching_up",
    "1 while the real-time lane delivers in micro-batches, because it fell behind or has too few slots; else 0.",
)
REALTIME_RESTARTS = Counter(
    "fanout_realtime_restarts", "Restarts of the real-time lane's query after a task failed, was lost or did not report."
)


def add_counters(lane: str, counters: Counters) -> None:
    """Add to the metrics the counters that a lane's workers have sent to the driver.

    Two gauges are set, not added to: the peak of requests in flight, and the difference of the clocks. The workers' CPU time is
    added to a metric without a lane.
    """
    for kind in OutcomeKind:
        DELIVERIES.labels(lane, kind.value, NONE)  # starts at zero, so that the first delivery counts as an increase
    for (outcome, reason), count in counters.deliveries.items():
        DELIVERIES.labels(lane, outcome, reason).inc(count)
    for reason, count in counters.rejected.items():
        REJECTED.labels(lane, reason).inc(count)
    for reason, count in counters.batches.items():
        BATCHES.labels(lane, reason).inc(count)
    for error_class, count in counters.attempts.items():
        ATTEMPTS.labels(lane, error_class).inc(count)
    RETRIES.labels(lane).inc(counters.retries)
    LATENCY_SECONDS.add(lane, counters.latencies, counters.latency_sum_s)
    IN_FLIGHT_PEAK.labels(lane).set(counters.most_in_flight)
    CPU_SECONDS.labels("workers").inc(counters.cpu_s)
    WAITED_FOR_HOSTS.labels(lane).inc(counters.waited_for_hosts)
    REUSED_IDS.labels(lane).inc(counters.reused_ids)
    INVALID_TIMES.labels(lane).inc(counters.invalid_times)
    TAKEN_APART.labels(lane).inc(counters.taken_apart)
    CLOCK_AHEAD_SECONDS.labels(lane).set(counters.clock_ahead_s)
    OWN_DELAY_SECONDS.labels(lane).inc(counters.own_delay_s)


def declared() -> dict[str, str]:
    """Return the help text of each metric of the platform, by the metric's name in `/metrics`."""
    return {
        family.name + ("_total" if family.type == "counter" else ""): family.documentation
        for family in prometheus_client.REGISTRY.collect()
        if family.name.startswith("fanout_")
    }
