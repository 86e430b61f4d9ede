"""Frame bodies in the Confluent wire format, and decode records by schemas that the test holds."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import fastavro
from google.protobuf import descriptor_pb2

from delivery import errors
from delivery.model import Event, Record
from delivery.webhooks.events import parsing
from delivery.webhooks.formats import decoder, registry_client, schemas

FORMATS = decoder.Formats(access=registry_client.Access(url="http://registry.example.com"), topic_pattern=r"events\..+")


class Reader:
    """Schemas by their ids. While `is_away`, no schema can be read. A schema in `unusable` can never be read."""

    def __init__(self, *known: schemas.Schema) -> None:
        self.known = dict(enumerate(known, start=1))
        self.asked: list[int] = []
        self.is_away = False
        self.unusable: set[int] = set()

    def schema(self, schema_id: int) -> schemas.Schema | None:
        self.asked.append(schema_id)
        if self.is_away:
            raise errors.SchemaRegistryUnavailable("away")
        if schema_id in self.unusable:
            failure = errors.SchemaRegistryUnavailable(f"no usable answer for schema {schema_id}")
            failure.is_of_schema = True
            raise failure
        return self.known.get(schema_id)


def framed(schema_id: int, body: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + body


def avro(schema: Any, value: Any) -> bytes:
    """Return the Avro of a value."""
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(schema), value)
    return written.getvalue()


def avro_schema(schema: Any, *references: Any) -> schemas.Schema:
    needed = tuple(schemas.Reference(reference["name"], json.dumps(reference)) for reference in references)
    return schemas.Schema(schemas.SchemaType.AVRO, json.dumps(schema), needed)


def protobuf_schema(file: Any, *references: Any) -> schemas.Schema:
    needed = tuple(schemas.Reference(reference.name, _written(reference)) for reference in references)
    return schemas.Schema(schemas.SchemaType.PROTOBUF, _written(file), needed)


def proto(name: str, *imports: str, package: str = "shop", **messages: dict[str, tuple[int, int, str]]) -> Any:
    """Return the descriptor of a file. A field has its number, its type's number in descriptor.proto, and its type's name."""
    file = descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax="proto3", dependency=imports)
    for message, fields in messages.items():
        made = file.message_type.add(name=message)
        for field, (number, kind, type_name) in fields.items():
            made.field.add(name=field, number=number, type=kind, label=1, type_name=type_name or None)
    return file


def event_of(record: Record, reader: Reader, layout: parsing.Layout | None = None) -> Event:
    return decoder.Decoder(FORMATS, layout or parsing.Layout(), reader).event_now(record)


def _written(file: Any) -> str:
    return base64.b64encode(file.SerializeToString()).decode()
