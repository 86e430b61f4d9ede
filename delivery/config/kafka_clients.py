"""Translate the Kafka settings into options of Spark's Java client and of librdkafka.

Runs on the driver, in the commands, in `fanout archive` and in the API. Pure. The options contain the password: pass them on,
never log them.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import SecretStr

from delivery.config.settings import Kafka


def for_spark(kafka: Kafka) -> dict[str, str]:
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


def for_librdkafka(kafka: Kafka) -> dict[str, str | int | float | bool]:
    """Return librdkafka configuration for confluent_kafka's clients in all processes, the workers included."""
    options: dict[str, str | int | float | bool] = {
        "log_level": 0,  # its own lines on standard error add nothing to our errors
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


def _revealed(options: Mapping[str, SecretStr]) -> dict[str, str]:
    return {name: value.get_secret_value() for name, value in options.items()}


def _jaas(kafka: Kafka) -> str:
    module = "plain.PlainLoginModule" if kafka.sasl_mechanism == "PLAIN" else "scram.ScramLoginModule"
    username = _quoted(kafka.sasl_username)
    password = _quoted(kafka.sasl_password.get_secret_value())
    return f"org.apache.kafka.common.security.{module} required username={username} password={password};"


def _quoted(text: str) -> str:
    """Return `text` in quotes for a JAAS line. A quote or backslash in the text is escaped, as it would end the value."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
