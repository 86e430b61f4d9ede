"""The settings of the schema registry. See `delivery.config.settings`."""

from __future__ import annotations

from typing import Annotated

import pydantic
from pydantic import Field, SecretStr

from delivery.config.setting_types import Area, Matching, Seconds, pattern_or_none

_URLS = Matching(
    r"(https?://[^@\s,]+(\s*,\s*https?://[^@\s,]+)*)?",
    "must be URLs with http:// or https://, separated by commas, without a user name",
)


class SchemaRegistrySettings(Area):
    """The schema registry: values in Avro, Protobuf and JSON Schema become JSON (docs/producing.md#schema-registry)."""

    topic_pattern: Annotated[str, pydantic.AfterValidator(pattern_or_none)] = ""
    """Regular expression, in the syntax of `source.topic_pattern`, for the whole name of a topic. Values of topics that match
    may be in the Confluent wire format. A value not in this format is read as in any other topic. Empty: no topic has a schema
    registry."""
    url: Annotated[str, _URLS] = ""
    """URL of the schema registry, several separated by commas. The server has the API of Confluent's Schema Registry. The user
    name and the password are settings of their own."""
    username: str = ""
    """User name for basic authentication. Empty: none."""
    password: SecretStr = SecretStr("")
    """Password for basic authentication."""
    ca_file: str = ""
    """PEM file of the trusted authorities; empty: those of Mozilla (`certifi`). Each executor needs the file."""
    timeout_s: Seconds = 5
    """Longest time of one request."""
    wait_s: Seconds = 3
    """Time for which a task waits for the schema of a record while the schema registry does not answer. Then the lane leaves
    out the record's topic until the schema registry answers, and delivers all other topics. The records of the topic wait in
    Kafka. The real-time lane leaves out partitions instead of topics."""
    max_schemas: Annotated[int, Field(gt=0)] = 1000
    """Most schemas in the cache of one worker process. The least recently used schemas are dropped first."""

    @pydantic.model_validator(mode="after")
    def _has_url(self) -> SchemaRegistrySettings:
        if self.topic_pattern and not self.url:
            raise ValueError(
                "topic_pattern of this area needs schema_registry.url, which is empty: set it to the URL of the schema "
                "registry, or empty topic_pattern"
            )
        return self
