"""The load tests' plain consumer delivers signed events, so that it is a rival and not a straw man."""

import asyncio
import re
import uuid

import orjson
import pytest
import standardwebhooks
import uvloop

from delivery.config import plan_builder, settings
from delivery.stages.kafka import topics
from fanout.admin import registry_commands
from fanout.kafka import publishing
from fanout.local import stack
from load_tests.rivals import plain_consumer
from subscriptions_db.manifest import manifest
from tests.integration.customers import Keeping

pytestmark = pytest.mark.integration
SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
WITHIN_S = 30


@pytest.fixture
def customer():
    with Keeping() as running:
        yield running


@pytest.fixture
def config(kafka, database):
    topic = f"events.{uuid.uuid4().hex[:8]}"
    made = settings.Settings.model_validate(
        {
            "kafka": {"bootstrap_servers": kafka.bootstrap_servers},
            "database": {"url": database},
            "source": {"topic_pattern": re.escape(topic)},
            "keys": {"active": "local", "ring": {"local": stack.new_key()}},
            "delivery": stack.DEVELOPMENT,
        }
    )
    topics.ensure(made.kafka, [topic], 2)
    return made, topic


def register(config: settings.Settings, url: str) -> None:
    document = {
        "tenants": [{"id": "t1"}, {"id": "t2"}],
        "customers": [{"id": "c1"}],
        "endpoints": [{"id": "ep1", "customer": "c1", "url": f"{url}/ep1", "signing_secrets": [SECRET]}],
        "subscriptions": [{"id": "s1", "endpoint": "ep1", "event_type": "*", "tenants": ["t1"]}],
    }
    registry_commands.apply_manifest(config, manifest.check(document, plan_builder.guard_of(config.delivery)))


async def until(config: settings.Settings, count: int) -> dict[str, int]:
    """Run the plain consumer until it has `count` results; return them."""
    stop = asyncio.Event()
    async with plain_consumer.http_client(config) as http, asyncio.timeout(WITHIN_S):
        consumer = plain_consumer.PlainConsumer(config, http)
        running = asyncio.create_task(consumer.run(stop))
        while consumer.counts.total() < count and not running.done():
            await asyncio.wait([running], timeout=0.02)
        stop.set()
        await running
    return dict(consumer.counts)


def run(config: settings.Settings, count: int) -> dict[str, int]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(until(config, count))


def publish(config: settings.Settings, topic: str, *values: bytes) -> None:
    publisher = publishing.Publisher(config.kafka)
    for value in values:
        publisher.publish(publishing.Message(topic=topic, value=value))
    publisher.flush()


def test_the_rival_delivers_signed_events_and_commits(config, customer):
    made, topic = config
    register(made, customer.url)
    # Every second event is of a tenant without a subscription, and is due to nobody.
    publish(made, topic, b"not JSON", *(orjson.dumps({"id": f"e{n}", "tenant_id": f"t{n % 2 + 1}"}) for n in range(20)))
    assert run(made, 11) == {"delivered": 10, "rejected": 1}
    publish(made, topic, orjson.dumps({"id": "later", "tenant_id": "t1"}))
    assert run(made, 1) == {"delivered": 1}  # no event of the first run again

    assert {name for name, _, _ in customer.received} == {"ep1"}
    bodies = [standardwebhooks.Webhook(SECRET).verify(body, headers) for _, headers, body in customer.received]
    assert sorted(body["id"] for body in bodies) == sorted([*(f"e{n}" for n in range(0, 20, 2)), "later"])
