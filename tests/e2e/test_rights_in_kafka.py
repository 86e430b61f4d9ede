"""With access lists in Kafka: the job by the rights that the operations document names, and a customer's login by none."""

import contextlib
import os
import pathlib
import re

import pyspark
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
from py4j import java_gateway, protocol
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JJavaError

from delivery.config import kafka_clients, settings
from delivery.stages.kafka import topics
from fanout.jvm import java
from fanout.kafka import publishing
from fanout.local import kafka_server as local_kafka
from fanout.reconcile import proving
from tests.support.logins import login

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
OPERATIONS = pathlib.Path(__file__).parents[2] / "docs" / "operations.md"
RIGHT = re.compile(r"^\| (topic|group) \| prefix `([^`]+)` \| ([a-z_, ]+) \|$", re.MULTILINE)
PASSWORDS = {"fanout": "job-login", "acme": "customer-login", "acme2": "another-login"}
DEFAULTS = settings.Settings()


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
    """Return Kafka's error to a login that asks for the leaders of a topic, as every reader does; None: no error."""
    error = AdminClient(kafka_clients.for_librdkafka(client)).list_topics(topic, timeout=10).topics[topic].error
    return error and error.code()


def let_acme_read(client, *resources):
    """Give a customer's login the right to what begins with `acme.`, which the document gives to none."""
    admin = AdminClient(kafka_clients.for_librdkafka(client))
    rights = [
        AclBinding(of, "acme.", ResourcePatternType.PREFIXED, "User:acme", "*", AclOperation.READ, AclPermissionType.ALLOW)
        for of in resources
    ]
    for made in admin.create_acls(rights).values():
        made.result(10)


@pytest.fixture
def java_classes(jars, monkeypatch):
    """The classes of Kafka's own client. librdkafka waits for a group's coordinator instead of saying that it may not ask."""
    # After an earlier Spark session of this process, errors of every JVM are converted by that session.
    monkeypatch.setattr(java_gateway, "get_return_value", protocol.get_return_value)
    [py4j] = (pathlib.Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
    port, process = launch_gateway(
        jarpath=str(py4j),
        classpath=os.pathsep.join(map(str, jars.broker)),
        java_path=str(java.find()),
        die_on_exit=True,
        return_proc=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True, enable_memory_management=False))
    yield gateway.jvm
    gateway.close()
    process.stdin.close()
    process.wait(10)


def java_options(client):
    return {name.removeprefix("kafka."): value for name, value in kafka_clients.for_spark(client).items()}


def fetched(classes, client, topic):
    """The first record of a topic, or why there is none for this login."""
    readable = dict.fromkeys(
        ("key.deserializer", "value.deserializer"), "org.apache.kafka.common.serialization.StringDeserializer"
    )
    consumer = classes.org.apache.kafka.clients.consumer.KafkaConsumer(java_options(client) | readable)
    with contextlib.closing(consumer):
        place = classes.org.apache.kafka.common.TopicPartition(topic, 0)
        consumer.assign([place])
        consumer.seekToBeginning([place])
        try:
            return consumer.poll(classes.java.time.Duration.ofSeconds(20)).iterator().next().value()
        except Py4JJavaError as refused:
            return refused.java_exception.getClass().getSimpleName()


class Groups:
    """Where consumer groups are in acme.orders, partition 0: asked, moved, described and deleted with one login."""

    def __init__(self, classes, kafka):
        self._classes = classes
        self._admin = classes.org.apache.kafka.clients.admin.Admin.create(java_options(kafka))
        self._place = classes.org.apache.kafka.common.TopicPartition("acme.orders", 0)

    def offset(self, group):
        """None: it has read nothing there."""
        found = self._admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().get(self._place)
        return found and found.offset()

    def commit(self, group, to=0):
        moved = self._classes.java.util.HashMap()
        moved.put(self._place, self._classes.org.apache.kafka.clients.consumer.OffsetAndMetadata(to))
        self._admin.alterConsumerGroupOffsets(group, moved).all().get()

    def refusals(self, group):
        """Return the error with which Kafka refuses each operation on a group."""
        asked = {
            "read": lambda: self.offset(group),
            "commit": lambda: self.commit(group),
            "describe": lambda: self._admin.describeConsumerGroups([group]).all().get(),
            "delete": lambda: self._admin.deleteConsumerGroups([group]).all().get(),
        }
        said = {}
        for name, ask in asked.items():
            with pytest.raises(Py4JJavaError) as refused:
                ask()
            said[name] = refused.value.java_exception.getCause().getClass().getSimpleName()
        return said

    def close(self):
        self._admin.close()


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
    broker.kill()


def test_the_documented_rights_suffice_and_a_customers_login_reads_nothing(platform, guarded):
    operator = settings.KafkaSettings(**login(guarded, "broker", local_kafka.BROKER_PASSWORD))
    admin = AdminClient(kafka_clients.for_librdkafka(operator))
    for made in admin.create_acls(of_the_document("fanout")).values():
        made.result(10)
    topics.ensure(operator, ["events.order"], 2)
    publisher = publishing.Publisher(operator)
    for number in range(4):
        event = b'{"id": "e%d", "tenant_id": "t1"}' % number
        publisher.publish(publishing.Message(topic="events.order", value=event))
    publisher.flush()
    platform.register([{}, {"endpoint": "ep2"}], endpoints=("ep1", "ep2"))
    platform.statuses["ep2"] = 400

    platform.run_once("--lanes", "direct,batch,retry")

    assert sorted(platform.accepted()) == [f"e{number}" for number in range(4)]
    account = proving.reconcile(platform.config, settle_s=0).account
    assert account.holds
    assert account.lanes["direct"].counts.dead_lettered == 4

    customer = settings.KafkaSettings(**login(guarded, "acme", PASSWORDS["acme"]))
    assert not AdminClient(kafka_clients.for_librdkafka(customer)).list_topics(timeout=10).topics
    lane = platform.config.delivery
    for topic in ("events.order", lane.attempts_topic, lane.dead_letter_topic, lane.rejected_topic, lane.retries_topic):
        assert refusal(operator, topic) is None
        assert refusal(customer, topic) == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_a_customers_login_cannot_read_or_move_the_offsets_of_another_group(guarded, java_classes):
    """More than the document gives: a customer may read groups and topics of its own. The names are as close as they can be."""
    kafka = settings.KafkaSettings(**login(guarded, "broker", local_kafka.BROKER_PASSWORD))
    let_acme_read(kafka, ResourceType.GROUP, ResourceType.TOPIC)
    topics.ensure(kafka, ["acme.orders"], 1)
    with contextlib.ExitStack() as stack:

        def of(user, password):
            asked_by = Groups(java_classes, settings.KafkaSettings(**login(guarded, user, password)))
            return stack.enter_context(contextlib.closing(asked_by))

        operator = of("broker", local_kafka.BROKER_PASSWORD)
        acme, acme2 = (of(user, PASSWORDS[user]) for user in ("acme", "acme2"))
        groups = {"fanout-archive": 7, "acme2.billing": 8, "acme.billing": 9}
        for group, to in groups.items():
            operator.commit(group, to)

        denied = dict.fromkeys(("read", "commit", "describe", "delete"), "GroupAuthorizationException")
        for group in ("fanout-archive", "acme2.billing", "acme2.", "acme", "../fanout-archive", "*"):
            assert acme.refusals(group) == denied, group
        for group in (*groups, "acme2", "acme2.", "acme.", "../fanout-archive", "*"):
            assert acme2.refusals(group) == denied, group
        # A customer may read every name below its own prefix. A name such as `acme./../x` is below the prefix too.
        assert [acme.offset(group) for group in ("acme.billing", "acme./../fanout-archive", "acme.*")] == [9, None, None]
        assert {group: operator.offset(group) for group in groups} == groups


def test_a_customers_login_fetches_nothing_of_a_topic_of_others(guarded, java_classes):
    """More than the document gives: one customer may read topics of its own. The names are as close as they can be."""
    kafka = settings.KafkaSettings(**login(guarded, "broker", local_kafka.BROKER_PASSWORD))
    let_acme_read(kafka, ResourceType.GROUP, ResourceType.TOPIC)
    named = ("acme.letters", "acme2.letters", "acme", DEFAULTS.delivery.dead_letter_topic)
    topics.ensure(kafka, named, 1)
    publisher = publishing.Publisher(kafka)
    for topic in named:
        publisher.publish(publishing.Message(topic=topic, value=topic.encode()))
    publisher.flush()

    customer = settings.KafkaSettings(**login(guarded, "acme", PASSWORDS["acme"]))
    denied = dict.fromkeys(named[1:], "TopicAuthorizationException")
    assert {topic: fetched(java_classes, customer, topic) for topic in named} == {"acme.letters": "acme.letters"} | denied
