"""Translate the Kafka settings into options of Spark's Java client and of librdkafka, and create librdkafka's clients.

Runs on the driver, in the commands, in `fanout archive` and in the API. The options contain the password, so never log them.
The library librdkafka checks the options when it creates a client, and its error may quote a value. So `admin`, `consumer` and
`producer` raise SettingsError in place of this error, without the value. Workers create their clients from the options of
`for_librdkafka`, without the settings.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient
from pydantic import SecretStr

from delivery import errors
from delivery.config.settings import KafkaSettings

FAILURE_WITHIN_S = 3.0
"""Seconds in which `connection_failure` waits for a failure. A refusal comes within a round trip or two."""
LOOK_S = 0.1
"""Seconds for which one poll of `connection_failure` waits for a failure."""
_NO_BROKER = confluent_kafka.KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001  # its public name
FILES = {
    "ssl.ca.location": ("ssl_ca_file", "certificates of authorities"),
    "ssl.certificate.location": ("ssl_keystore_file", "the client's certificates"),
    "ssl.key.location": ("ssl_keystore_file", "the client's private key"),
}
"""librdkafka's option of a file → the field of KafkaSettings that names the file, and the required content of the file."""


def for_spark(kafka: KafkaSettings) -> dict[str, str]:
    """Return options of Spark's Kafka source (Java client names with the prefix `kafka.`)."""
    options = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "security.protocol": kafka.security_protocol,
    }
    if kafka.sasl_mechanism:
        options["sasl.mechanism"] = kafka.sasl_mechanism
        options["sasl.jaas.config"] = _jaas(kafka)
    if kafka.ssl_ca_file:
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": kafka.ssl_ca_file}
    if kafka.ssl_keystore_file:
        options |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": kafka.ssl_keystore_file}
    return {f"kafka.{name}": value for name, value in (options | _revealed(kafka.spark_options)).items()}


def for_librdkafka(kafka: KafkaSettings) -> dict[str, str | int | float | bool]:
    """Return librdkafka configuration for confluent_kafka's clients in all processes, the workers included."""
    options: dict[str, str | int | float | bool] = {
        "log_level": 0,  # librdkafka's own lines on standard error add nothing to our errors
        "bootstrap.servers": kafka.bootstrap_servers,
        "security.protocol": kafka.security_protocol,
    }
    if kafka.sasl_mechanism:
        options |= {
            "sasl.mechanism": kafka.sasl_mechanism,
            "sasl.username": kafka.sasl_username,
            "sasl.password": kafka.sasl_password.get_secret_value(),
        }
    if kafka.ssl_ca_file:
        options["ssl.ca.location"] = kafka.ssl_ca_file
    if kafka.ssl_keystore_file:
        options |= {"ssl.certificate.location": kafka.ssl_keystore_file, "ssl.key.location": kafka.ssl_keystore_file}
    return options | _revealed(kafka.librdkafka_options)


def for_reading(kafka: KafkaSettings) -> dict[str, str | int | float | bool]:
    """Return librdkafka configuration for the tasks that read the offsets which Spark's Kafka source has planned.

    The tasks and Spark's source must agree on whether to read records of open and aborted transactions. By default Spark's
    source reads such records.
    """
    return for_librdkafka(kafka) | {"isolation.level": isolation_level(kafka)}


def isolation_level(kafka: KafkaSettings) -> str:
    """Return `read_committed` if Spark's Kafka source leaves out records of aborted transactions, else `read_uncommitted`."""
    return _revealed(kafka.spark_options).get("isolation.level", "read_uncommitted")


def admin(kafka: KafkaSettings) -> AdminClient:
    """Return a new client for topics, offsets and brokers. Raise SettingsError if librdkafka refuses an option."""
    with _translated(kafka):
        return AdminClient(for_librdkafka(kafka))


def consumer(kafka: KafkaSettings, own: Mapping[str, Any], fixed: Mapping[str, Any] | None = None) -> confluent_kafka.Consumer:
    """Return a new client that reads. Raise SettingsError if librdkafka refuses an option.

    `own` and `fixed` have further options. `kafka.librdkafka_options` overrides options of `own`, but no option of `fixed`.
    """
    with _translated(kafka):
        return confluent_kafka.Consumer({**own, **for_librdkafka(kafka), **(fixed or {})})


def producer(kafka: KafkaSettings, own: Mapping[str, Any], fixed: Mapping[str, Any] | None = None) -> confluent_kafka.Producer:
    """Return a new client that writes. Raise SettingsError if librdkafka refuses an option.

    `own` and `fixed` have further options. `kafka.librdkafka_options` overrides options of `own`, but no option of `fixed`.
    """
    with _translated(kafka):
        return confluent_kafka.Producer({**own, **for_librdkafka(kafka), **(fixed or {})})


def require_answer(client: AdminClient, *, within_s: float) -> None:
    """Raise KafkaException if no broker answers a request for the topics within `within_s` seconds.

    A cluster without an active broker counts as one that does not answer. For such a cluster librdkafka (2.10 to 2.16) ends the
    process in `describe_cluster`: its assertion in `rd_kafka_admin_response_parse` fails. After its start or a pause, a broker
    reports no active broker until the controller lists this broker again. So no code of the platform calls `describe_cluster`.
    """
    if not client.list_topics(timeout=within_s).brokers:
        raise confluent_kafka.KafkaException(confluent_kafka.KafkaError(_NO_BROKER))


def connection_failure(kafka: KafkaSettings, *, within_s: float = FAILURE_WITHIN_S) -> str:
    """Connect to Kafka with a new client, and return librdkafka's text of the first failure; "" if none comes in `within_s`.

    The error of a failed request says only that no broker answered. librdkafka's text says whether the connection, the
    certificate or the login was refused. The text has no password. Raise SettingsError if librdkafka refuses an option.
    """
    failures: list[confluent_kafka.KafkaError] = []
    with _translated(kafka):
        client = AdminClient({**for_librdkafka(kafka), "error_cb": failures.append})  # type: ignore[dict-item]  # as documented
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        client.poll(LOOK_S)  # calls error_cb
        # Another error, that all brokers are down, may come first.
        for failure in failures:
            if failure.code() != _NO_BROKER:
                return failure.str()
    return ""


@contextlib.contextmanager
def _translated(kafka: KafkaSettings) -> Iterator[None]:
    """Raise SettingsError if librdkafka refuses an option of a client that is created in the block.

    librdkafka's error may quote the value of an option. So librdkafka's error is not the cause of the SettingsError, and the
    message has names of options only. Any other KafkaException is raised unchanged.
    """
    try:
        yield
    except confluent_kafka.KafkaException as exc:
        error: confluent_kafka.KafkaError = exc.args[0]
        if error.code() != confluent_kafka.KafkaError._INVALID_ARG:  # noqa: SLF001  # its public name
            raise
        raise errors.SettingsError(_refusal(kafka, error.str())) from None
    except (TypeError, AttributeError, ValueError) as exc:  # for an option that is a function or a table, such as `error_cb`
        raise errors.SettingsError(_refusal(kafka, str(exc), takes_text=False)) from None


def _refusal(kafka: KafkaSettings, text: str, *, takes_text: bool = True) -> str:
    """Return the operator's message about options that the Kafka client refused. `text` is the text of the client's error.

    The message names each configured option that occurs in `text`. If some of them are set by `kafka.librdkafka_options`, the
    message names only these. The message has no values of options, except the path of an unusable file in FILES. `takes_text`
    is False if the client wants a function or a table, which a setting cannot be.
    """
    named = [name for name in for_librdkafka(kafka) if re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.])", text)]
    if text.startswith("No such configuration property"):
        problem = "librdkafka has no option of this name"
    elif not takes_text:
        problem = "the option takes a function or a table, and a setting is text"
    else:
        problem = "librdkafka refuses the value, which is not shown here because it may be a password"
    if len(named) == 1 and named[0] in FILES and named[0] not in kafka.librdkafka_options:
        field, content = FILES[named[0]]
        where = f"setting kafka.{field}"
        problem = f"{getattr(kafka, field)} cannot be read, or is no PEM file with {content}"
    elif others := [name for name in named if name in kafka.librdkafka_options]:
        where = f"setting kafka.librdkafka_options, option {', '.join(others)}"
    else:
        where = f"settings of [kafka] or kafka.librdkafka_options{''.join(f', option {name}' for name in named)}"
    return (
        f"{where}: {problem}. The Kafka client was not started, and nothing was read or written. Correct the setting, then try "
        "again"
    )


def _revealed(options: Mapping[str, SecretStr]) -> dict[str, str]:
    return {name: value.get_secret_value() for name, value in options.items()}


def _jaas(kafka: KafkaSettings) -> str:
    module = "plain.PlainLoginModule" if kafka.sasl_mechanism == "PLAIN" else "scram.ScramLoginModule"
    username = _quoted(kafka.sasl_username)
    password = _quoted(kafka.sasl_password.get_secret_value())
    return f"org.apache.kafka.common.security.{module} required username={username} password={password};"


def _quoted(text: str) -> str:
    """Return `text` in quotes for a JAAS line. Quotes and backslashes in the text are escaped: the text stays one value."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
