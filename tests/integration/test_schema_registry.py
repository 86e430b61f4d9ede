"""Values that Confluent's own serializers have framed, read by a real worker from a registry on a real port."""

import json
import socket

import orjson
import pytest
from confluent_kafka import schema_registry
from confluent_kafka.schema_registry import error

from delivery import errors
from delivery.config import plan_builder, settings, settings_loader
from delivery.secret import Secret
from delivery.stages.kafka import kafka_outage
from delivery.webhooks.events import parsing
from delivery.webhooks.formats import decoder, registry_client, schemas
from delivery.webhooks.routing import matching
from fanout.admin import diagnosis
from tests.integration.customers import Keeping, Source, working
from tests.support import builders, certificates, framing
from tests.support.schema_registry import PASSWORD, USERNAME, SchemaRegistry
from tests.support.schema_writers import (
    AVRO,
    MONEY_TEXT,
    ORDER,
    ORDER_TEXT,
    PROTOBUF_ONLY,
    TOPIC,
    by_avro,
    by_json_schema,
    by_protobuf,
    with_field,
)

pytestmark = pytest.mark.integration


@pytest.fixture
def registry():
    with SchemaRegistry() as made:
        yield made


@pytest.fixture
def client(registry):
    """Return Confluent's client, with which the producers' serializers register their schemas."""
    with schema_registry.SchemaRegistryClient({"url": registry.url}) as made:
        yield made


def access(registry, **fields):
    return registry_client.Access(**{"url": registry.url, "wait_s": 0.01, "timeout_s": 5.0} | fields)


def formats(registry, **fields):
    return decoder.Formats(access=access(registry, **fields), topic_pattern=r"events\..+")


def event_of(registry, value):
    here = decoder.decoder_of(formats(registry), parsing.Layout())
    return here.event_now(builders.record(value=value))


@pytest.mark.parametrize(
    ("write", "more"),
    [
        pytest.param(by_avro, {}, id="avro"),
        pytest.param(by_json_schema, {}, id="json schema"),
        pytest.param(by_protobuf, PROTOBUF_ONLY, id="protobuf"),
    ],
)
def test_what_confluents_serializers_write_is_read(registry, client, write, more):
    value = write(client, ORDER)
    assert value[:1] == b"\0"
    event = event_of(registry, value)
    assert (event.event_id, event.tenant_id) == ("order-17", "t1")
    assert event.content == ORDER | more


@pytest.mark.parametrize("is_text", [True, False])
def test_protobuf_is_read_from_a_registry_without_descriptors(registry, client, is_text):
    """Regression: Apicurio returns the text of a `.proto` file for `format=serialized` too, and its events were rejected."""
    registry.has_descriptors = False
    value = by_protobuf(client, ORDER)
    if is_text:
        registry.register("money", MONEY_TEXT, "PROTOBUF")
        number = registry.register(
            "order", ORDER_TEXT, "PROTOBUF", [{"name": "shop/money.proto", "subject": "money", "version": 1}]
        )
        value = framing.framed(number, value[5:])
    assert event_of(registry, value).content == ORDER | PROTOBUF_ONLY
    # Apicurio 3.3.3 fails if it is asked for the descriptor of a descriptor.
    assert any("serialized" in path for path in registry.requests) is is_text


def test_each_event_is_decoded_by_the_version_of_its_writer(registry, client):
    """Also if the schema registry accepts any version, and the newest version cannot read values of the others."""
    registry.compatibility = "NONE"
    events = [ORDER, ORDER | {"paid": True}, ORDER | {"currency": "EUR"}]
    newer = [with_field(name="paid", type="boolean", default=False), with_field(name="currency", type="string")]
    values = [by_avro(client, event, schema) for event, schema in zip(events, [AVRO, *newer], strict=True)]
    assert [event_of(registry, value).content for value in values] == events


def test_only_a_compatible_version_gets_past_the_producer(registry, client):
    """The schema registry refuses an incompatible version. Events of the versions that it has are delivered all the same."""
    paid = ORDER | {"id": "order-18", "paid": True}
    values = [by_avro(client, ORDER), by_avro(client, paid, with_field(name="paid", type="boolean", default=False))]
    with Keeping() as customers, working(formats=formats(registry)) as here:
        source = Source(builders.snapshot(builders.endpoint(url=f"{customers.url}/ep1"), builders.subscription()))
        list(here.deliver([[builders.record(offset=0, value=values[0])]], source))
        with pytest.raises(error.SchemaRegistryError, match="incompatible with an earlier schema") as refused:
            by_avro(client, paid | {"currency": "EUR"}, with_field(name="currency", type="string"))
        list(here.deliver([[builders.record(offset=number, value=value) for number, value in enumerate(values, 1)]], source))
    assert (refused.value.http_status_code, refused.value.error_code) == (409, 409)
    sent = [orjson.loads(body)["data"] for _, _, body in customers.received]
    assert sorted(sent, key=lambda event: event["id"]) == [ORDER, ORDER, paid]


def test_a_schema_comes_after_all_that_it_needs(registry):
    currency = {"type": "enum", "name": "shop.Currency", "symbols": ["EUR"]}
    money = {"type": "record", "name": "shop.Money", "fields": [{"name": "in", "type": "shop.Currency"}]}
    registry.register("currency", json.dumps(currency))
    of_currency = {"name": "shop.Currency", "subject": "currency", "version": 1}
    registry.register("money", json.dumps(money), references=[of_currency])
    order = {**AVRO, "fields": [*AVRO["fields"], {"name": "price", "type": "shop.Money"}]}
    needed = [{"name": "shop.Money", "subject": "money", "version": 1}, of_currency]
    number = registry.register("order", json.dumps(order), references=needed)
    read = registry_client.RegistryClient(access(registry)).schema(number)
    assert [reference.name for reference in read.references] == ["shop.Currency", "shop.Money"]
    decode = schemas.compiled(number, read)
    assert orjson.loads(decode(b"\x02a\x04t1\x0a\0")) == {"id": "a", "tenant_id": "t1", "amount": 5, "price": {"in": "EUR"}}


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
def test_an_answer_that_does_not_decide_counts_as_away(registry, status):
    """A 404 without the registry's own code comes from a proxy, or from a wrong path."""
    registry.status = status
    with pytest.raises(errors.SchemaRegistryUnavailable, match=f"schema 1 .it answered with status {status}"):
        registry_client.RegistryClient(access(registry)).schema(1)


def test_a_refused_connection_or_a_timeout_counts_as_away(registry):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(errors.SchemaRegistryUnavailable, match="ReadTimeout"):
            registry_client.RegistryClient(access(registry, url=url, timeout_s=0.1)).schema(1)
    registry.stop()
    client = registry_client.RegistryClient(access(registry))
    with pytest.raises(errors.SchemaRegistryUnavailable, match="ConnectError"):
        client.schema(1)
    registry.start()
    assert client.schema(1) is None


def test_a_missing_schema_or_reference_is_no_schema(registry):
    client = registry_client.RegistryClient(access(registry))
    assert client.schema(1) is None
    needed = [{"name": "shop.Money", "subject": "money", "version": 3}]
    assert client.schema(registry.register("order", json.dumps(AVRO), references=needed)) is None
    registry.register("money", '"int"')
    assert client.schema(1) is None


@pytest.mark.parametrize("is_trusted", [True, False])
def test_settings_name_a_private_authority_and_a_password_file(tmp_path, is_trusted):
    """TLS by `ca_file`, and basic authentication by a mounted secret: as the chart sets them up."""
    here = certificates.authority()
    context = certificates.server_context(certificates.issue("registry", issuer=here))
    trusted = here if is_trusted else certificates.authority("another")
    (tmp_path / "ca.pem").write_text(trusted.pem)
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    with SchemaRegistry(is_protected=True, tls=context) as registry:
        number = registry.register("order", json.dumps(AVRO))
        environ = {
            "FANOUT_SCHEMA_REGISTRY_TOPIC_PATTERN": "events[.].+",
            "FANOUT_SCHEMA_REGISTRY_URL": registry.url,
            "FANOUT_SCHEMA_REGISTRY_CA_FILE": str(tmp_path / "ca.pem"),
            "FANOUT_SCHEMA_REGISTRY_USERNAME": USERNAME,
            "FANOUT_SCHEMA_REGISTRY_PASSWORD_FILE": str(tmp_path / "password"),
            "FANOUT_SCHEMA_REGISTRY_WAIT_S": "0.01",
        }
        config = settings_loader.read(environ, root=tmp_path)
        client = registry_client.RegistryClient(plan_builder.formats_of(config.schema_registry).access)
        if is_trusted:
            assert client.schema(number).schema_type == "AVRO"
            return
        with pytest.raises(errors.SchemaRegistryUnavailable, match="ConnectError") as away:
            client.schema(number)
    assert "canary" not in str(away.value)


@pytest.mark.parametrize("is_right", [True, False])
def test_a_wrong_password_rejects_nothing_and_is_not_shown(is_right):
    with SchemaRegistry(is_protected=True) as registry:
        number = registry.register("order", json.dumps(AVRO))
        password = Secret((PASSWORD if is_right else f"other {PASSWORD}").encode())
        client = registry_client.RegistryClient(access(registry, username=USERNAME, password=password))
        assert "canary" not in repr(client._access)
        if is_right:
            assert client.schema(number).schema_type == "AVRO"
            return
        with pytest.raises(errors.SchemaRegistryUnavailable, match="401") as away:
            client.schema(number)
        assert "canary" not in str(away.value)


def test_a_task_pauses_a_partition_without_the_registry_and_loses_nothing(registry, client):
    """The first record's schema is known. The second record waits, and no receipt covers it. Other topics are delivered."""
    first = builders.record(offset=0, value=by_avro(client, ORDER))
    second = builders.record(offset=1, value=by_json_schema(client, ORDER | {"id": "order-18"}))
    other = builders.record(topic="plain", offset=7, value=orjson.dumps(ORDER | {"id": "order-19", "type": "order.created"}))
    with Keeping() as customers, working(formats=formats(registry)) as here:
        endpoint = builders.endpoint(url=f"{customers.url}/ep1")
        source = Source(builders.snapshot(endpoint, builders.subscription()))
        assert [len(found.outcomes) for found in here.deliver([[first]], source)][-1:] != []
        registry.stop()
        seen = list(here.deliver([[first, second, other]], source))
        assert [rejection for found in seen for rejection in found.rejections] == []
        receipts = [(receipt.topic, receipt.last_offset, receipt.due) for found in seen for receipt in found.receipts]
        assert sorted(receipts) == [(TOPIC, 0, 1), ("plain", 7, 1)]
        assert seen[-1].paused == {(TOPIC, 0): 1}
        assert {orjson.loads(body)["id"] for _, _, body in customers.received} == {"order-17", "order-19"}
        registry.start()
        here._lanes._formats._away = (0.0, "")  # as after AWAY_S
        results = list(here.deliver([[second]], source))
    assert [receipt.due for found in results for receipt in found.receipts] == [1]
    assert orjson.loads(customers.received[-1][2])["data"] == ORDER | {"id": "order-18"}


def test_the_batch_lane_collects_nothing_meanwhile(registry, client):
    value = by_avro(client, ORDER)
    endpoint = builders.endpoint()
    source = Source(builders.snapshot(endpoint, builders.subscription()))
    registry.status = 503
    with working(formats=formats(registry)) as here:
        collected = list(here.collect([[builders.record(value=value)]], source, shards=1, immediate_flush_s=0))
    assert [row for part in collected for row in part.rows] == []
    assert [receipt for part in collected for receipt in part.results.receipts] == []
    assert collected[-1].results.paused == {(TOPIC, 0): builders.record().offset}


def test_filters_see_the_decoded_content(registry, client):
    value = by_avro(client, ORDER)
    wanted = {"data": {"amount": [{"numeric": [">", 500]}]}}
    subscription = builders.subscription(filter_pattern=wanted)
    router = matching.Router(builders.snapshot(builders.endpoint(), subscription))
    assert len(router.matches(event_of(registry, value))) == 1


def test_the_driver_and_the_doctor_ask_the_registry(registry):
    config = settings.Settings.model_validate({"schema_registry": {"url": registry.url, "topic_pattern": "events[.].+"}})
    assert kafka_outage.schema_registry_answers(config.schema_registry)
    assert f"{registry.url} answers" in diagnosis._schema_registry(config)
    registry.status = 503
    assert not kafka_outage.schema_registry_answers(config.schema_registry)
    with pytest.raises(errors.SchemaRegistryUnavailable):
        diagnosis._schema_registry(config)
    assert kafka_outage.schema_registry_answers(settings.Settings().schema_registry)
    assert "none" in diagnosis._schema_registry(settings.Settings())
