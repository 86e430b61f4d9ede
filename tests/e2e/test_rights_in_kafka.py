"""With access lists in Kafka: the job by the rights that the operations document names, and a customer's login by none."""

import pathlib
import re

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
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
PASSWORDS = {"fanout": "job-login", "acme": "customer-login", "acme2": "another-login"}
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


def offset(client, group):
    """Ask where a group is in events.order, partition 0; None: it has read nothing there."""
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition("events.order", 0)])
    [found] = client.list_consumer_group_offsets([wanted])[group].result(10).topic_partitions
    return None if found.offset < 0 else found.offset


def commit(client, group, to):
    client.alter_consumer_group_offsets([at(group, to)])[group].result(10)


def at(group, offset):
    return ConsumerGroupTopicPartitions(group, [TopicPartition("events.order", 0, offset)])


OF_A_GROUP = {
    "describe": lambda client, group: client.describe_consumer_groups([group])[group].result(10),
    "read": offset,
    "commit": lambda client, group: commit(client, group, 0),
    "delete": lambda client, group: client.delete_consumer_groups([group])[group].result(10),
}


def refusals(client, group):
    """What Kafka says to each of these."""
    said = {}
    for name, ask in OF_A_GROUP.items():
        with pytest.raises(KafkaException) as refused:
            ask(client, group)
        said[name] = refused.value.args[0].code()
    return said


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


def test_a_customers_login_learns_and_changes_nothing_of_where_a_group_of_others_is(guarded):
    """More than the document gives: one customer may read groups of its own. The names are as close as they can be."""
    kafka = settings.Kafka(**login(guarded, "broker", local_kafka.BROKER_PASSWORD))
    operator = AdminClient(kafka_options.for_librdkafka(kafka))
    acme, acme2 = (
        AdminClient(kafka_options.for_librdkafka(settings.Kafka(**login(guarded, user, PASSWORDS[user]))))
        for user in ("acme", "acme2")
    )
    own = AclBinding(
        ResourceType.GROUP, "acme.", ResourcePatternType.PREFIXED, "User:acme", "*", AclOperation.READ, AclPermissionType.ALLOW
    )  # fmt: skip
    operator.create_acls([own])[own].result(10)
    topics.ensure(kafka, ["events.order"], 1)
    groups = {"fanout-archive": 7, "acme2.billing": 8, "acme.billing": 9}
    for group, to in groups.items():
        commit(operator, group, to)

    denied = dict.fromkeys(OF_A_GROUP, KafkaError.GROUP_AUTHORIZATION_FAILED)
    for group in ("fanout-archive", "acme2.billing", "acme2.", "acme", "../fanout-archive", "*"):
        assert refusals(acme, group) == denied, group
    for group in (*groups, "acme2", "acme2.", "acme.", "../fanout-archive", "*"):
        assert refusals(acme2, group) == denied, group
    # Of its own prefix it may read any name, and a name that looks like a way out of it is one of its own.
    assert [offset(acme, group) for group in ("acme.billing", "acme./../fanout-archive", "acme.*")] == [9, None, None]
    assert {group: offset(operator, group) for group in groups} == groups
