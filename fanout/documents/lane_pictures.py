"""Describe the pictures of lanes, registry, archive and API in docs/architecture.md, in the order in which data flows.

Runs in `python -m fanout.documents.generate` and the tests. fanout.documents.flowchart checks the pictures against the code.
"""

from __future__ import annotations

import re
from pathlib import Path

from fanout.documents import flowchart
from fanout.documents.flowchart import Code, Frame, Outside, Picture, Topics, calls, passes

DOCUMENT = "architecture.md"
BEGIN = "<!-- picture: {}. Drawn from the code by `make docs`, described in fanout/documents/lane_pictures.py. -->"
END = "<!-- end of the picture -->"

EVENTS = Topics(("source.topic_pattern",))
FAST_RESULTS = Topics(
    ("delivery.attempts_topic", "delivery.dead_letter_topic", "delivery.rejected_topic", "delivery.retries_topic")
)
ENDPOINT = Outside("the customer's endpoint")
SOURCE = Code(("delivery.stages.kafka.topic_source",))
PLANNED = Code(("delivery.stages.kafka.topic_source", "delivery.stages.kafka.offset_ranges"))
SINK = Code(("delivery.webhooks.results.topic_rows", "delivery.stages.kafka.sink"), "results become rows, Kafka confirms them")
WAKEUPS = Code(("delivery.stages.lanes.stateful", "delivery.stages.kafka.wakeups"))

TASK_CONTEXT = "delivery.stages.tasks.task_context"
"""The module that opens the sink in each task."""
LANE_FACTORY = "delivery.webhooks.lanes.lane_factory"
"""The module that passes the sender to the lanes of a worker."""
TOPICS_OF_RESULTS = "delivery.config.plan_builder"
"""The module that passes the names of the result topics to `topic_rows`."""
REGISTRIES = "delivery.webhooks.routing.registries"
"""The module with the registry of a worker, which the driver passes to the workers."""
BROADCASTS = "delivery.stages.registry.broadcasts"
FOLLOWER = "subscriptions_db.following.registry_follower"
LOOKUP_SOURCE = "subscriptions_db.following.lookup_source"
BATCH_QUERY = "delivery.stages.lanes.batch_query"
RETRY_QUERY = "delivery.stages.lanes.retry_query"
REALTIME_QUERY = "delivery.stages.realtime.realtime_query"

DIRECT = Picture(
    boxes={
        "topics": EVENTS,
        "source": PLANNED,
        "registry": Code(("delivery.stages.registry",), "broadcast and changes"),
        "task": Code(
            ("delivery.stages.kafka.record_reader", "delivery.stages.tasks.deliver_events", TASK_CONTEXT),
            "fetch the records, deliver them",
        ),
        "lane": Code(("delivery.webhooks.lanes.worker", "delivery.webhooks.lanes.direct_lane")),
        "intake": Code(("delivery.webhooks.routing.intake",), "parse, match, filter"),
        "dispatch": Code(("delivery.webhooks.dispatching.dispatch",), "fair order, limits, quick retries"),
        "sender": Code(("delivery.webhooks.sending.sender",), "sign"),
        "http": Code(("delivery.webhooks.http.transport",), "address guard, connections"),
        "endpoint": ENDPOINT,
        "sink": SINK,
        "results": FAST_RESULTS,
    },
    arrows=(
        passes("topics", "source", "Kafka", "delivery.stages.kafka.topic_source", "offsets"),
        passes("source", "task", "Spark", "delivery.stages.lanes.direct_query", "offset ranges"),
        passes("registry", "task", "Spark", REGISTRIES),
        calls("task", "lane"),
        calls("lane", "intake", "records"),
        calls("lane", "dispatch", "deliveries"),
        passes("dispatch", "sender", "object", LANE_FACTORY, "the sender"),
        calls("sender", "http"),
        passes("http", "endpoint", "HTTP", "delivery.webhooks.http.transport"),
        calls("task", "sink", "results"),
        passes("sink", "results", "Kafka", TOPICS_OF_RESULTS),
    ),
    frame=Frame("one worker process", ("lane", "intake", "dispatch", "sender", "http")),
)

BATCH = Picture(
    boxes={
        "topics": EVENTS,
        "ticks": Topics(("batch.ticks_topic",)),
        "source": PLANNED,
        "delta": Code(("delivery.stages.registry.task_delta",), "changes of the registry"),
        "collect": Code(
            (
                "delivery.stages.kafka.record_reader",
                "delivery.stages.tasks.collect_segments",
                "delivery.webhooks.lanes.batch_collect",
            ),
            "fetch the records, collect them by shard",
        ),
        "shard": Code(("delivery.stages.tasks.batch_shard", "delivery.webhooks.batching"), "state in RocksDB"),
        "deliver": Code(("delivery.stages.tasks.deliver_batches", "delivery.webhooks.lanes.batch_lane")),
        "endpoint": ENDPOINT,
        "sink": SINK,
        "results": FAST_RESULTS,
        "wakeups": WAKEUPS,
    },
    arrows=(
        passes("topics", "source", "Kafka", "delivery.stages.kafka.topic_source", "offsets"),
        passes("ticks", "source", "Kafka", "delivery.stages.kafka.topic_source"),
        passes("source", "collect", "Spark", BATCH_QUERY, "offset ranges"),
        passes("delta", "collect", "Spark", BATCH_QUERY),
        passes("collect", "shard", "Spark", BATCH_QUERY, "segments, shuffled by shard"),
        passes("shard", "deliver", "Spark", BATCH_QUERY, "batches that leave"),
        passes("deliver", "endpoint", "HTTP", LANE_FACTORY),
        passes("deliver", "sink", "object", TASK_CONTEXT, "results"),
        passes("sink", "results", "Kafka", TOPICS_OF_RESULTS),
        passes("shard", "wakeups", "Spark", BATCH_QUERY, "when the next batch is due"),
        passes("wakeups", "ticks", "Kafka", "delivery.stages.kafka.wakeups"),
    ),
)

RETRY = Picture(
    boxes={
        "fast": Code(
            ("delivery.webhooks.results.topic_rows", "fanout.redrive"), "direct, batch and real-time lane · redrive · replay"
        ),
        "retries": Topics(("delivery.retries_topic",)),
        "ticks": Topics(("retry.ticks_topic",)),
        "source": SOURCE,
        "shard": Code(("delivery.stages.tasks.retry_shard", "delivery.webhooks.retries"), "state in RocksDB"),
        "deliver": Code(
            ("delivery.stages.tasks.deliver_retries", "delivery.webhooks.lanes.retry_lane", "delivery.webhooks.leases"),
            "triage, attempts, report",
        ),
        "endpoint": ENDPOINT,
        "sink": SINK,
        "results": Topics(("delivery.attempts_topic", "delivery.dead_letter_topic", "delivery.rejected_topic")),
        "wakeups": WAKEUPS,
    },
    arrows=(
        passes("fast", "retries", "Kafka", TOPICS_OF_RESULTS, "retry entries"),
        passes("retries", "source", "Kafka", RETRY_QUERY),
        passes("ticks", "source", "Kafka", "delivery.stages.kafka.topic_source"),
        passes("source", "shard", "Spark", RETRY_QUERY, "shuffled by shard"),
        passes("shard", "deliver", "Spark", RETRY_QUERY, "leases"),
        passes("deliver", "endpoint", "HTTP", "delivery.webhooks.lanes.worker"),
        passes("deliver", "sink", "object", TASK_CONTEXT, "results, reports"),
        passes("sink", "results", "Kafka", TOPICS_OF_RESULTS),
        passes("sink", "retries", "Kafka", TOPICS_OF_RESULTS, "reports"),
        passes("shard", "wakeups", "Spark", RETRY_QUERY, "when the next entry is due"),
        passes("wakeups", "ticks", "Kafka", "delivery.stages.kafka.wakeups"),
    ),
)

REALTIME = Picture(
    boxes={
        "topics": Topics(("source.realtime_pattern",)),
        "offsets": Code(("delivery.stages.realtime.start_offsets",), "where to continue"),
        "records": Code(("delivery.stages.realtime.realtime_source",), "one task a partition, for minutes"),
        "server": Code(("delivery.stages.realtime.task_server",), "on the driver"),
        "task": Code(("delivery.stages.realtime.deliver_realtime", "delivery.stages.realtime.realtime_task")),
        "lane": Code(("delivery.webhooks.lanes.realtime_lane",), "slices of one second"),
        "direct": Code(("delivery.webhooks.lanes.direct_lane",), "as in the direct lane"),
        "endpoint": ENDPOINT,
        "sink": SINK,
        "results": FAST_RESULTS,
    },
    arrows=(
        passes("topics", "records", "Kafka", "delivery.stages.kafka.topic_source"),
        passes("offsets", "records", "Spark", REALTIME_QUERY),
        passes("records", "task", "Spark", REALTIME_QUERY),
        passes("server", "task", "TCP", "delivery.stages.realtime.channel", "registry, suppressed endpoints, pause, stop"),
        passes("task", "server", "TCP", "delivery.stages.realtime.channel", "reports, four times a second"),
        calls("task", "lane"),
        calls("lane", "direct"),
        passes("direct", "endpoint", "HTTP", LANE_FACTORY),
        passes("task", "sink", "object", TASK_CONTEXT, "results, receipts"),
        passes("sink", "results", "Kafka", TOPICS_OF_RESULTS),
    ),
)

REGISTRY = Picture(
    boxes={
        "postgres": Outside("Postgres: the registry", is_store=True),
        "follower": Code((FOLLOWER,)),
        "broadcasts": Code((BROADCASTS,)),
        "delta": Code(("delivery.stages.registry.task_delta",)),
        "registries": Code((REGISTRIES,), "the newest registry of a worker"),
        "lookup_source": Code((LOOKUP_SOURCE,)),
        "lookup": Code(("delivery.webhooks.routing.lookup_registry",)),
        "matching": Code(("delivery.webhooks.routing.matching",)),
    },
    arrows=(
        passes("postgres", "follower", "Postgres", FOLLOWER),
        passes("follower", "broadcasts", "object", "delivery.webhooks.routing.published_registry"),
        passes("broadcasts", "registries", "Spark", REGISTRIES, "snapshot, broadcast once"),
        passes("broadcasts", "delta", "object", REGISTRIES, "changes by revision"),
        calls("delta", "registries"),
        calls("registries", "matching"),
        passes("postgres", "lookup_source", "Postgres", LOOKUP_SOURCE, "snapshot.source = lookup"),
        calls("lookup_source", "lookup"),
        calls("lookup", "matching"),
    ),
    direction="LR",
)

ARCHIVE = Picture(
    boxes={
        "topics": Topics(("delivery.attempts_topic", "delivery.dead_letter_topic")),
        "reader": Code(("fanout.archiver.topic_reader", "fanout.archiver.main_loop")),
        "ingest": Code(("subscriptions_db.archive.ingest",)),
        "api": Code(("subscriptions_db.api.deliveries",), "in fanout serve"),
        "search": Code(("subscriptions_db.archive.search",)),
        "tables": Outside("Postgres: dead letters and attempts, by day", is_store=True),
        "steps": Code(("fanout.archiver.redrive_step", "fanout.archiver.replay_step")),
        "redrive": Code(("fanout.redrive",)),
        "retries": Topics(("delivery.retries_topic",)),
        "notifications": Code(("subscriptions_db.archive.notifications", "fanout.archiver.notify_step")),
        "events": Topics(("operations.topic",)),
    },
    arrows=(
        passes("topics", "reader", "Kafka", "fanout.archiver.main_loop"),
        calls("reader", "ingest"),
        passes("ingest", "tables", "Postgres", "subscriptions_db.archive.ingest.writer"),
        calls("api", "search"),
        passes("search", "tables", "Postgres", "subscriptions_db.archive.search.archived_dead_letters"),
        passes("tables", "steps", "Postgres", "fanout.archiver.redrive_step", "redrives, replays"),
        calls("steps", "redrive"),
        passes("redrive", "retries", "Kafka", "fanout.redrive.enqueue"),
        calls("ingest", "notifications", "endpoint health"),
        passes("notifications", "events", "Kafka", "fanout.archiver.notify_step", "operational events"),
    ),
    direction="LR",
)

API = Picture(
    boxes={
        "request": Outside("request"),
        "app": Code(("subscriptions_db.api.server.app",), "limits of size and time"),
        "contract": Code(("subscriptions_db.api.contract.routes",)),
        "admission": Code(("subscriptions_db.api.admission.admission",), "key, rate, scope"),
        "handler": Code(("subscriptions_db.api.server.handler",), "on a thread"),
        "handlers": Code(("subscriptions_db.api.registry", "subscriptions_db.api.deliveries")),
        "transaction": Code(("subscriptions_db.api.server.transactions",), "one transaction, the caller's rights"),
        "postgres": Outside("Postgres, row-level security", is_store=True),
        "publishing": Code(
            ("subscriptions_db.api.server.publish_handler", "subscriptions_db.api.publishing"), "checks by the job's parser"
        ),
        "topics": EVENTS,
    },
    arrows=(
        passes("request", "app", "HTTP", "subscriptions_db.api.server.app"),
        calls("app", "contract"),
        calls("app", "admission"),
        calls("app", "handler"),
        passes("handler", "handlers", "object", "subscriptions_db.api.contract.routes", "the route"),
        calls("handler", "transaction"),
        passes("transaction", "postgres", "Postgres", "subscriptions_db.api.server.transactions"),
        calls("app", "publishing"),
        passes("publishing", "topics", "Kafka", "subscriptions_db.api.publishing.checks"),
    ),
    direction="LR",
)

PICTURES = {
    "the direct lane": DIRECT,
    "the batch lane": BATCH,
    "the retry lane": RETRY,
    "the real-time lane": REALTIME,
    "the registry": REGISTRY,
    "the archive": ARCHIVE,
    "the HTTP API": API,
}
"""The pictures, each by the name in its marker BEGIN in docs/architecture.md."""


def document(root: Path) -> str:
    """Return the text of docs/architecture.md with the present pictures.

    Raise ValueError if the text lacks the markers BEGIN and END of a picture, or if a picture differs from the code.
    """
    text = (root / "docs" / DOCUMENT).read_text()
    code = flowchart.known(root)
    for name, picture in PICTURES.items():
        begin = BEGIN.format(name)
        parts = re.split(f"(?<={re.escape(begin)}\n).*?(?={re.escape(END)})", text, maxsplit=1, flags=re.DOTALL)
        if len(parts) != 2:  # noqa: PLR2004  # before and after
            raise ValueError(
                f"docs/{DOCUMENT} has no picture of {name}: write `{begin}` and `{END}`, each in a line of its own. The file "
                "is unchanged"
            )
        text = ("\n" + flowchart.drawn(picture, code) + "\n").join(parts)
    return text
