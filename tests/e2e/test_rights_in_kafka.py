"""With access lists in Kafka: the job by the rights that the operations document names, and a customer's login by none."""

import pathlib
import re

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from delivery import kafka_options, settings
from delivery.stages import topics
from fanout import proving, publishing
from fanout.local import kafka as local_kafka

pytestmark = pytest.mark.e2e
OPERATIONS = pathlib.Path(__file__).parents[2] / "docs" / "operations.md"
RIGHT = re.compile(r"^\| (topic|group) \| prefix `([^`]+)` \| ([a-z_, ]+) \|$", re.MULTILINE)
PASSWORDS = {"fanout": "job-login", "acme": "customer-login"}
DEFAULTS = settings.Settings()


def login(broker, user, password):
    return {
        "bootstrap_servers": broker.bootstrap_servers,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_username": user,
        "sasl_password": password,
    }


def of_the_document(user):
    return [
        AclBinding(
            ResourceType[resource.upper()], prefix, ResourcePatternType.PREFIXED,
            f"User:{user}", "*", AclOperation[operation.upper()], AclPermissionType.ALLOW,
        )
        for resource, prefix, operations in RIGHT.findall(OPERATIONS.read_text())
        for operation in operations.split(", ")
    ]  # fmt: skip


def refusal(client, topic):
    """What Kafka says to a login that asks who leads a topic's partitions; None: it is told. Without that nobody reads."""
    error = AdminClient(kafka_options.for_librdkafka(client)).list_topics(topic, timeout=10).topics[topic].error
    return error and error.code()


@pytest.fixture
def guarded(platform, jars, tmp_path):
    """A broker with access lists, which the platform uses by the default names of its topics."""
    broker = local_kafka.EmbeddedKafka(tmp_path / "guarded", libraries=jars, sasl_users=PASSWORDS, is_guarded=True)
    broker.start()
    usual, platform._kafka = platform.settings, broker
    named = {
        "kafka": login(broker, "fanout", PASSWORDS["fanout"]),
        "source": {name: getattr(DEFAULTS.source, name) for name in ("topic_pattern", "topic_prefix")},
        "delivery": {
            name: getattr(DEFAULTS.delivery, name)
            for name in ("attempts_topic", "dead_letter_topic", "rejected_topic", "retries_topic")
        },
        "batch": {"ticks_topic": DEFAULTS.batch.ticks_topic},
        "retry": {"ticks_topic": DEFAULTS.retry.ticks_topic},
    }
    platform.settings = lambda **overrides: usual(**named | overrides)
    yield broker
    broker.stop()


def test_the_job_has_enough_by_the_rights_of_the_document_and_a_customers_login_reads_nothing(platform, guarded):
    operator = settings.Kafka(**login(guarded, "broker", local_kafka.BROKER_PASSWORD))
    admin = AdminClient(kafka_options.for_librdkafka(operator))
    for made in admin.create_acls(of_the_document("fanout")).values():
        made.result(10)
    topics.ensure(operator, ["events.order"], 2)
    publisher = publishing.Publisher(operator)
    for number in range(4):
        event = b'{"id": "e%d", "tenant_id": "t1"}' % number
        publisher.publish(publishing.Message(topic="events.order", value=event))
    publisher.flush()
    platform.migrate()
    platform.register([{}, {"endpoint": "ep2"}], endpoints=("ep1", "ep2"))
    platform.statuses["ep2"] = 400

    platform.run_once("--lanes", "direct,batch,retry")

    assert sorted(platform.accepted()) == [f"e{number}" for number in range(4)]
    account = proving.reconcile(platform.config, settle_s=0).account
    assert account.holds
    assert account.lanes["direct"].counts.dead_lettered == 4

    customer = settings.Kafka(**login(guarded, "acme", PASSWORDS["acme"]))
    assert not AdminClient(kafka_options.for_librdkafka(customer)).list_topics(timeout=10).topics
    lane = platform.config.delivery
    for topic in ("events.order", lane.attempts_topic, lane.dead_letter_topic, lane.rejected_topic, lane.retries_topic):
        assert refusal(operator, topic) is None
        assert refusal(customer, topic) == KafkaError.TOPIC_AUTHORIZATION_FAILED
