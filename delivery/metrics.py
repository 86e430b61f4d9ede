"""Every metric, with its meaning. Labels come from closed sets only.

Runs on the driver; the workers' own numbers are in the attempts topic. Served for Prometheus when `metrics.port` is set.
"""

from __future__ import annotations

import prometheus_client

from delivery import errors, settings

RECORDS = prometheus_client.Counter("fanout_records", "Records handled in committed micro-batches.", ["lane"])
MICRO_BATCH_SECONDS = prometheus_client.Histogram(
    "fanout_micro_batch_seconds",
    "How long a micro-batch with records took, from its offsets to its commit.",
    ["lane"],
    buckets=(0.25, 0.5, 1, 2, 5, 10, 30, 60),
)
REGISTRY_REVISION = prometheus_client.Gauge("fanout_registry_revision", "Revision of the registry that is being routed by.")
REGISTRY_CONFIRMED = prometheus_client.Gauge(
    "fanout_registry_confirmed_timestamp_seconds", "When Postgres last confirmed that revision; its age is what to alert on."
)
REGISTRY_QUARANTINED = prometheus_client.Gauge("fanout_registry_quarantined_rows", "Rows of the registry that cannot be used.")


def serve(config: settings.Metrics) -> None:
    """Serve `/metrics` from a thread, if it is asked for."""
    if not config.port:
        return
    try:
        prometheus_client.start_http_server(config.port, config.host)
    except OSError as exc:
        raise errors.SettingsError(f"setting metrics.port: {config.port} is in use; choose another") from exc
