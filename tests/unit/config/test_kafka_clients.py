"""A client of Kafka that librdkafka refuses to create is a wrong setting, which is named without its value."""

import re
import traceback
from pathlib import Path

import confluent_kafka
import pytest
from pydantic import SecretStr

from delivery import errors
from delivery.config import kafka_clients, settings
from delivery.stages.kafka import topics
from fanout.admin import diagnosis, registry_commands
from fanout.archiver import topic_reader
from fanout.kafka import publishing, topic_scanner
from fanout.reconcile import ledger
from tests.support import brokerless_kafka, certificates

ROOT = Path(__file__).parents[3]
VALUE = "hunter2"
WRONG = settings.Settings.model_validate(
    {"kafka": {"bootstrap_servers": "127.0.0.1:1", "librdkafka_options": {"no.such": VALUE}}}
)


def consumer(kafka):
    return kafka_clients.consumer(kafka, {"group.id": "g"})


def producer(kafka):
    return kafka_clients.producer(kafka, {"linger.ms": 5})


@pytest.mark.parametrize("create", [kafka_clients.admin, consumer, producer])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"no.such": VALUE}, r"^setting kafka\.librdkafka_options, option no\.such: librdkafka has no option of this name\. "),
        ({"socket.timeout.ms": VALUE}, r"^setting kafka\.librdkafka_options, option socket\.timeout\.ms: .*refuses the value"),
        ({"partitioner": VALUE}, r"^setting kafka\.librdkafka_options, option partitioner: .*refuses the value"),
        ({"debug": VALUE, "client.id": "debugger"}, r"^setting kafka\.librdkafka_options, option debug: .*refuses the value"),
        ({"error_cb": VALUE}, r"^setting kafka\.librdkafka_options, option error_cb: .*takes a function"),
        ({"throttle_cb": VALUE}, r"^setting kafka\.librdkafka_options, option throttle_cb: .*takes a function"),
        ({"default.topic.config": VALUE}, r"^settings of \[kafka\] or kafka\.librdkafka_options: .*a function or a table"),
        ({"plugin.library.paths": VALUE}, r"^settings of \[kafka\] or kafka\.librdkafka_options: .*refuses the value"),
    ],
)
def test_a_refused_option_is_named_without_its_value(create, options, message):
    kafka = settings.KafkaSettings(bootstrap_servers="127.0.0.1:1", librdkafka_options=options)
    with pytest.raises(errors.SettingsError, match=message) as refused:
        create(kafka)
    assert "The Kafka client was not started, and nothing was read or written" in str(refused.value)
    assert VALUE not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize(
    ("field", "content"), [("ssl_ca_file", "certificates of authorities"), ("ssl_keystore_file", "the client's certificates")]
)
def test_an_unusable_file_is_named_with_its_setting_and_what_it_must_have(field, content):
    kafka = settings.KafkaSettings.model_validate({"security_protocol": "SSL", field: "/no/such/file"})
    message = rf"^setting kafka\.{field}: /no/such/file cannot be read, or is no PEM file with {content}\. "
    with pytest.raises(errors.SettingsError, match=message):
        kafka_clients.admin(kafka)


def test_a_keystore_without_a_private_key_is_named_with_what_it_lacks(tmp_path):
    (tmp_path / "client.pem").write_text(certificates.issue("client").pem)
    kafka = settings.KafkaSettings(security_protocol="SSL", ssl_keystore_file=str(tmp_path / "client.pem"))
    with pytest.raises(errors.SettingsError, match=r"^setting kafka\.ssl_keystore_file: .* the client's private key\. "):
        kafka_clients.admin(kafka)


def test_a_failure_that_is_no_wrong_option_is_not_taken_for_a_wrong_setting(monkeypatch):
    """The system may refuse a thread for the client."""

    def fail(_):
        raise confluent_kafka.KafkaException(confluent_kafka.KafkaError(confluent_kafka.KafkaError._CRIT_SYS_RESOURCE))

    monkeypatch.setattr(confluent_kafka, "Consumer", fail)
    with pytest.raises(confluent_kafka.KafkaException):
        consumer(settings.KafkaSettings())


@pytest.mark.parametrize(
    "begin",
    [
        lambda config: topics.ensure(config.kafka, ["events"], 1),
        lambda config: topics.names(config.kafka),
        lambda config: topics.require_room(config.kafka, "retries"),
        lambda config: topic_scanner.Scanner(config.kafka),
        lambda config: publishing.Publisher(config.kafka),
        lambda config: topic_reader.Source(config.kafka, ["attempts"]),
        lambda config: ledger.RecordReader(config.kafka, config.delivery),
    ],
    ids=["ensure", "names", "require_room", "scan", "publish", "archive", "ledger"],
)
def test_a_command_with_a_wrong_option_names_the_setting(begin):
    """Regression: `reconcile`, `publish`, `dead-letters` and `archive` ended with a traceback of KafkaException."""
    with pytest.raises(errors.SettingsError, match=r"setting kafka\.librdkafka_options, option no\.such"):
        begin(WRONG)


def test_doctor_reports_a_wrong_option_and_runs_the_other_checks():
    """Regression: `fanout doctor` ended with a traceback at its check of the topics, and ran no later check."""
    checks = {"kafka": diagnosis._kafka, "topics": diagnosis._topics, "guard": diagnosis._guard}
    found = {finding.subject: finding for finding in diagnosis._findings(WRONG, checks)}
    assert [found[subject].is_fine for subject in checks] == [False, False, True]
    assert "option no.such" in found["kafka"].text


def test_a_wrong_option_keeps_nobody_from_registering():
    """`fanout apply` asks Kafka for topics only to warn of subscriptions that may match no event."""
    assert registry_commands.known_types(WRONG) == frozenset()


def test_a_cluster_without_an_active_broker_does_not_answer():
    """Regression: librdkafka ended the driver by an assertion, when such a cluster answered `describe_cluster`."""
    with brokerless_kafka.running() as address:
        client = kafka_clients.admin(settings.KafkaSettings(bootstrap_servers=address))
        with pytest.raises(confluent_kafka.KafkaException):
            kafka_clients.require_answer(client, within_s=10)


@pytest.mark.parametrize("of_spark", ["read_committed", "read_uncommitted"])
def test_tasks_read_by_the_isolation_level_of_the_source_that_plans(of_spark):
    """Otherwise a range could end behind the last record that the tasks may read, or have records of aborted transactions."""
    kafka = settings.KafkaSettings(
        spark_options={"isolation.level": SecretStr(of_spark)}, librdkafka_options={"isolation.level": SecretStr("x")}
    )
    assert kafka_clients.for_reading(kafka)["isolation.level"] == of_spark


def test_tasks_read_by_the_default_isolation_level_of_spark():
    assert kafka_clients.for_reading(settings.KafkaSettings())["isolation.level"] == "read_uncommitted"


def test_no_code_calls_what_ends_the_process():
    paths = [path for package in ("delivery", "fanout", "subscriptions_db") for path in (ROOT / package).rglob("*.py")]
    assert [path for path in paths if ".describe_cluster(" in path.read_text()] == []


def test_only_workers_create_clients_elsewhere():
    """Workers have no settings: the driver creates a client with the same options before it starts them."""
    paths = [path for package in ("delivery", "fanout", "subscriptions_db") for path in (ROOT / package).rglob("*.py")]
    creates = re.compile(
        r"\b(AdminClient|confluent_kafka\.(Consumer|Producer))\(|from confluent_kafka import .*(Consumer|Producer)"
    )
    assert {str(path.relative_to(ROOT)) for path in paths if creates.search(path.read_text())} == {
        "delivery/config/kafka_clients.py",
        "delivery/stages/kafka/completed_reader.py",
        "delivery/stages/kafka/event_writer.py",
        "delivery/stages/kafka/record_reader.py",
        "delivery/stages/kafka/sink.py",
        "delivery/stages/realtime/start_offsets.py",
    }
