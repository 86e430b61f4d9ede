"""Represent a schema of the schema registry, and compile it into a function that decodes bodies by the schema.

Pure. Runs in the executors, the archive and the commands. The driver uses the types. A framed value is a value in the
Confluent wire format: a frame (a zero byte and the schema's id), then the body.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple

from delivery import errors
from delivery.webhooks.formats import avro, protobuf

Decode = Callable[[bytes], bytes]
"""A function that takes the body of a framed value, and returns its JSON. The function raises EventRejected if the schema
cannot be used, or if an Avro or Protobuf body does not fit its schema. For a JSON Schema, the function returns the body
unchanged and unchecked."""


class SchemaType(enum.StrEnum):
    """The types of schemas, as the schema registry names them."""

    AVRO = "AVRO"
    PROTOBUF = "PROTOBUF"
    JSON = "JSON"


MAX_REFERENCES = 1000
"""Most schemas that one schema may need, directly or through others. The events of a schema that needs more are rejected."""
_MEDIA_TYPES = {SchemaType.AVRO.value: "application/avro", SchemaType.PROTOBUF.value: "application/x-protobuf"}
_ANY_BYTES = "application/octet-stream"
"""Media type of framed JSON, which the frame makes no JSON, and of values by schemas of unknown types."""


class Reference(NamedTuple):
    """A schema that another schema needs."""

    name: str
    """Avro: the type's name. Protobuf: the name in `import`."""
    text: str


class Schema(NamedTuple):
    """A schema with all schemas that decoding by it needs: `references`, ordered so that no schema needs a later one."""

    schema_type: str
    text: str
    """Avro and JSON Schema: JSON. Protobuf: a FileDescriptorProto in base64, or the text of a `.proto` file."""
    references: tuple[Reference, ...] = ()


def media_type(schema_type: str) -> str:
    """Return the media type of a value in the Confluent wire format, by the type of the value's schema.

    Used if the record's `content-type` is missing, invalid or a JSON type.
    """
    return _MEDIA_TYPES.get(schema_type, _ANY_BYTES)


def compiled(schema_id: int, schema: Schema) -> Decode:
    """Return a function that takes a body and returns JSON. `schema_id` is the schema's id in the schema registry.

    The returned function raises EventRejected for a body that it cannot convert: for every body if the schema cannot be used.
    For a JSON Schema, the function returns each body unchanged and unchecked.
    """
    try:
        if len(schema.references) > MAX_REFERENCES:
            raise ValueError(f"it needs more than {MAX_REFERENCES} other schemas")  # noqa: TRY301  # as in `avro`
        if schema.schema_type == SchemaType.AVRO:
            return avro.compiled(schema.text, [reference.text for reference in schema.references])
        if schema.schema_type == SchemaType.PROTOBUF:
            return protobuf.compiled(schema.text, {reference.name: reference.text for reference in schema.references})
        if schema.schema_type == SchemaType.JSON:
            return _unchanged
        fault = f"its type {schema.schema_type[:40]!a} is not known"
    except ValueError as exc:
        fault = str(exc)

    def reject(_: bytes) -> bytes:
        raise errors.EventRejected(
            "undecodable", f"schema {schema_id} cannot be used: {fault}. Publish the event by another schema"
        )

    return reject


def _unchanged(body: bytes) -> bytes:
    """Return the body, which the caller parses as JSON. Only the producer's serializer validates a body by its schema."""
    return body
