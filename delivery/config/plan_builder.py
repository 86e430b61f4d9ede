"""Build, from the settings, the plain values that the executors get.

Runs on the driver. The commands, `fanout archive` and the API use the guard, the layout and the formats. A plan has all
settings of a worker (`worker_plan.Plan`), and is pickled into every task. The only secret of a plan is the password of the
schema registry, wrapped in a Secret.
"""

from __future__ import annotations

import dataclasses
import logging
import math

from delivery.config import schema_settings, settings
from delivery.secret import Secret
from delivery.webhooks.events import parsing
from delivery.webhooks.formats import decoder, registry_client
from delivery.webhooks.http import guard
from delivery.webhooks.lanes import worker_plan
from delivery.webhooks.policy import backoff
from delivery.webhooks.results import topic_rows
from delivery.webhooks.retries import health_hints, window
from delivery.webhooks.scheduling import limits

log = logging.getLogger(__name__)


def plan_of(config: settings.Settings) -> worker_plan.Plan:
    """Return the plan for the workers of the direct, batch and retry lanes."""
    lane, known = config.delivery, config.snapshot
    return worker_plan.Plan(
        topics=topic_rows.Topics(
            attempts=lane.attempts_topic,
            dead_letters=lane.dead_letter_topic,
            rejected=lane.rejected_topic,
            retries=lane.retries_topic,
        ),
        guard=guard_of(lane),
        layout=layout_of(config),
        formats=formats_of(config.schema_registry),
        limits=limits.Limits(
            max_in_flight=lane.max_in_flight,
            max_in_flight_per_endpoint=lane.max_in_flight_per_endpoint,
            queue_timeout_s=lane.lane_deadline_s,
            response_deadline_s=lane.patience_s if lane.patience_s < lane.attempt_timeout_s else math.inf,
            workers=config.spark.parallelism,
            max_per_host=lane.max_connections_per_host,
            max_per_second_per_host=lane.max_per_second_per_host,
            unlimited_hosts=tuple(name.lower().rstrip(".") for name in lane.unlimited_hosts),
        ),
        quick_retry=backoff.QuickRetry(
            max_attempts=lane.max_attempts, first_wait_s=lane.retry_wait_s, max_retry_after_s=lane.lane_deadline_s
        ),
        attempt_timeout_s=lane.attempt_timeout_s,
        max_retry_after_s=lane.max_retry_after_s,
        logged_response_bytes=lane.logged_response_bytes,
        logs_accepted=lane.logged_responses == "all",
        max_connections=lane.max_connections,
        registry_max_age_s=known.max_age_s if known.source == "broadcast" else known.lookup_ttl_s,
        report_accepting_every_s=health_hints.report_interval_s(config.retry.disable_after_s),
    )


def of_realtime(config: settings.Settings) -> worker_plan.Plan:
    """Return the plan for the workers of the real-time lane.

    A slice is the records of about one second. Two slices may deliver at the same time: one ends while the next begins
    (delivery.webhooks.lanes.realtime_lane). So each slice may have half as many requests in flight to an endpoint as a task of
    the direct lane, but at least one.
    """
    direct = plan_of(config)
    return dataclasses.replace(direct, limits=dataclasses.replace(direct.limits, slices=2))


def layout_of(config: settings.Settings) -> parsing.Layout:
    """Return the settings by which workers read events from records: those of `source`, and `operations.topic`."""
    source = config.source
    return parsing.Layout(
        id_path=path_of(source.id_field),
        type_path=path_of(source.type_field),
        tenant_path=path_of(source.tenant_field),
        sub_tenant_path=path_of(source.sub_tenant_field),
        time_path=path_of(source.time_field),
        passes_cloud_event_time=source.invalid_time == "passed",
        passes_plain_time=source.invalid_time != "rejected",
        tells_ids_apart=source.reused_ids == "told_apart",
        rejects_reused_ids=source.reused_ids == "rejected",
        takes_batches_apart=source.batch_records == "taken_apart",
        topic_prefix=source.topic_prefix,
        max_bytes=source.max_event_bytes,
        tenant_of_topic=source.tenant_of_topic,
        operational_topic=config.operations.topic,
    )


def path_of(dotted: str) -> tuple[str, ...]:
    """Return the keys of a dotted path, the outermost first: `meta.type` names the field `type` within `meta`."""
    return tuple(dotted.split("."))


def formats_of(registry: schema_settings.SchemaRegistrySettings) -> decoder.Formats | None:
    """Return the settings by which values of records are decoded; None: no topic has a schema registry."""
    if not registry.topic_pattern:
        return None
    return decoder.Formats(
        access=registry_client.Access(
            url=registry.url,
            username=registry.username,
            password=Secret(registry.password.get_secret_value().encode()),
            ca_file=registry.ca_file,
            timeout_s=registry.timeout_s,
            wait_s=registry.wait_s,
        ),
        topic_pattern=registry.topic_pattern,
        max_schemas=registry.max_schemas,
    )


def retry_policy(config: settings.RetrySettings) -> window.ShardPolicy:
    """Return the settings by which the retry lane decides: probes, deliveries sent together, largest backlog, disabling."""
    return window.ShardPolicy(
        probe_interval_s=config.probe_interval_s,
        max_probe_interval_s=config.max_probe_interval_s,
        max_lease_entries=config.max_turn,
        max_pending=config.max_pending,
        disable_after_s=config.disable_after_s,
    )


def guard_of(lane: settings.DeliverySettings) -> guard.Guard:
    """Return the guard that checks endpoints when they are registered, read and connected to."""
    return guard.Guard(allow_networks=lane.allow_networks, allow_http=lane.allow_http, allow_ports=lane.allow_ports)


def warn_of_open_guard(lane: settings.DeliverySettings) -> None:
    """Log a warning if the guard allows more than production should.

    Called at the start of the job and of the API. Other commands, such as `fanout apply`, do not call it.
    """
    if opened := opened_for_development(lane):
        log.warning(
            "the address guard is OPEN for development: %s. This process starts all the same, and an endpoint of any customer "
            "may use these. In production, remove delivery.allow_networks, allow_http and an empty allow_ports", opened,
        )  # fmt: skip


def opened_for_development(lane: settings.DeliverySettings) -> str:
    """Return the networks, schemes and ports that the guard allows only for development, as one text; empty: none."""
    opened = [f"networks {', '.join(lane.allow_networks)}"] if lane.allow_networks else []
    opened += ["plain http"] if lane.allow_http else []
    opened += [] if lane.allow_ports else ["any port"]
    return ", ".join(opened)
