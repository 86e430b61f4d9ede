"""`fanout reconcile` decodes the values of a schema registry by the parser of the lanes, and announces its wait."""

import contextlib
import io
import json
import re
import uuid

import pytest

from delivery import errors
from delivery.config import plan_builder, settings
from delivery.model import Record
from delivery.stages.kafka import topics
from delivery.webhooks.results import topic_rows
from fanout.kafka import publishing, topic_scanner
from fanout.reconcile import proving
from fanout.terminal import commands
from tests.integration.customers import Keeping, Source, working
from tests.support import builders, framing, raw_records
from tests.support.schema_registry import SchemaRegistry

pytestmark = pytest.mark.integration
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": name, "type": "string"} for name in ("id", "tenant_id", "type")],
}


def config_of(kafka, name, **areas):
    return settings.Settings.model_validate({
        "kafka": {"bootstrap_servers": kafka.bootstrap_servers},
        "source": {"topic_pattern": f"{name}[.].+", "topic_prefix": f"{name}."},
        "delivery": {
            "attempts_topic": f"attempts-{name}", "dead_letter_topic": f"dead-{name}",
            "rejected_topic": f"rejected-{name}", "retries_topic": f"retries-{name}", "result_partitions": 1,
        },
    } | areas)  # fmt: skip


def written(config, topic, *values):
    """Publish values; return the records as Kafka has them."""
    publisher = publishing.Publisher(config.kafka)
    for value in values:
        publisher.publish(publishing.Message(topic=topic, value=value))
    publisher.flush()
    records = []

    def add(message):
        place = (message.topic(), message.partition(), message.offset(), message.timestamp()[1])
        records.append(Record(*place, message.value(), ()))

    with contextlib.closing(topic_scanner.Scanner(config.kafka)) as scanner:
        scanner.read(scanner.extents([topic]), topic, add)
    return records


def test_the_account_names_the_type_of_decoded_events(kafka):
    name = uuid.uuid4().hex[:8]
    with SchemaRegistry() as registry, Keeping() as customers:
        config = config_of(kafka, name, schema_registry={"topic_pattern": ".+", "url": registry.url, "wait_s": 0.01})
        topics.ensure_all(config)
        topics.ensure(config.kafka, [f"{name}.framed"], 1)
        number = registry.register("order", json.dumps(ORDER))
        values = [{"id": f"e{n}", "tenant_id": "t1", "type": "order.paid"} for n in range(3)]
        framed = (framing.framed(number, framing.avro(ORDER, value)) for value in values)
        records = written(config, f"{name}.framed", *framed, framing.framed(number + 1, b"no such schema"))
        endpoint = builders.endpoint(url=f"{customers.url}/ep1")
        source = Source(builders.snapshot(endpoint, builders.subscription(event_type="order.paid")))
        plan = plan_builder.plan_of(config)
        publisher = publishing.Publisher(config.kafka)
        with working(formats=plan.formats) as here:
            for results in here.deliver([records], source):
                for row in topic_rows.rows(results, plan.topics, now_ms=0):
                    publisher.publish(publishing.Message(topic=row.topic, key=row.key, value=row.value))
        publisher.flush()
        account = proving.reconcile(config, settle_s=0).account
        registry.stop()
        with pytest.raises(errors.SchemaRegistryUnavailable):
            proving.reconcile(config, settle_s=0)
    assert account.holds, [finding.text() for finding in account.findings.kept]
    [(group, counts)] = account.groups.items()
    assert (group.event_type, counts.due, counts.delivered) == ("order.paid", 3, 3)
    direct = account.lanes["direct"]
    assert (direct.records, direct.rejected, direct.behind) == (4, 1, 0)


def test_a_record_with_an_unreadable_header_name_ends_no_account(kafka):
    """Regression: the name is not UTF-8, and `fanout reconcile` ended with a traceback."""
    name = uuid.uuid4().hex[:8]
    config = config_of(kafka, name)
    topics.ensure_all(config)
    for topic in (f"{name}.order", config.delivery.retries_topic):
        topics.ensure(config.kafka, [topic], 1)
        raw_records.produce(kafka.bootstrap_servers, topic, b"", [(b"caf\xe9", b"1")])
    assert proving.reconcile(config, settle_s=0).account.holds


def test_the_wait_for_what_belongs_to_older_records_is_announced(kafka):
    """Regression: a newcomer waited 10 s for an account without the delivery of just now, and for no named reason."""
    config = config_of(kafka, uuid.uuid4().hex[:8])
    topics.ensure_all(config)
    slept, shown = [], commands.Console(file=io.StringIO(), width=200, force_terminal=True)
    proof = proving.reconcile(config, settle_s=10, console=shown, clock=lambda: 1_800_000_000.0, sleep=slept.append)
    assert slept == [10]
    said = re.sub(r"\x1b\[[0-9;]*m", "", shown.file.getvalue())  # without colours
    assert said.startswith("records of the last 10 s are not judged; waiting 10 s ")
    assert proof.account.holds
