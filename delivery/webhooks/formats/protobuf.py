"""Decode Protobuf by the descriptors of its schema, and write it as JSON. Pure. Runs in the executors and the commands.

The JSON is that of the Protobuf documentation ("ProtoJSON Format"), with the names of fields as in the `.proto` file, and with
fields that have their default. So filters see `false`, 0 and "" too. docs/producing.md lists the JSON of each type.
"""

from __future__ import annotations

import base64
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from delivery import errors
from delivery.webhooks.formats import wire_format

_MAIN = "fanout/schema.proto"
"""Name of the schema's own file. A schema has no file name, and no import may have this one."""
_MODULES = (
    *(
        f"google.protobuf.{name}_pb2"
        for name in (
            "any", "api", "descriptor", "duration", "empty", "field_mask", "source_context", "struct", "timestamp", "type",
            "wrappers",
        )
    ),
    "confluent_kafka.schema_registry.confluent.meta_pb2",
    "confluent_kafka.schema_registry.confluent.type.decimal_pb2",
)  # fmt: skip
"""Modules with the files that schemas import without a reference."""


def compiled(text: str, references: Mapping[str, str]) -> Callable[[bytes], bytes]:
    """Return the function from a body to JSON by the descriptor `text`, a FileDescriptorProto in base64.

    `references` has the descriptors of other files, by the names with which files import them. Raise ValueError if the schema
    cannot be used, with the reason.
    """
    try:
        return _compiled(text, references)
    except Exception as exc:  # the descriptors come from the schema registry; Protobuf raises errors of several classes
        raise ValueError(f"{type(exc).__name__}: {exc}"[:200]) from exc


def _compiled(text: str, references: Mapping[str, str]) -> Callable[[bytes], bytes]:
    from google.protobuf import descriptor_pool, json_format, message_factory  # noqa: PLC0415  # as in `avro`

    pool = descriptor_pool.DescriptorPool()
    main = _file(_MAIN, text)
    _add(pool, main, {name: _file(name, reference) for name, reference in references.items()} | _built_in(), set())
    classes: dict[tuple[int, ...], Any] = {}

    def class_of(indexes: tuple[int, ...]) -> Any:
        if indexes not in classes:
            message = pool.FindMessageTypeByName(_full_name(main, indexes))
            classes[indexes] = message_factory.GetMessageClass(message)
        return classes[indexes]

    def decode(body: bytes) -> bytes:
        indexes, rest = wire_format.message_indexes(body)
        message_class = class_of(indexes)
        try:
            document = json_format.MessageToDict(
                message_class.FromString(rest),
                preserving_proto_field_name=True,
                always_print_fields_with_no_presence=True,
                descriptor_pool=pool,
            )
            return orjson.dumps(document)
        except Exception as exc:  # as in `avro`
            raise errors.EventRejected(
                "undecodable", f"the Protobuf does not decode ({type(exc).__name__}: {exc})"[:200]
            ) from exc

    return decode


def _file(name: str, text: str) -> Any:
    from google.protobuf import descriptor_pb2  # noqa: PLC0415

    file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    file.name = name
    return file


def _built_in() -> dict[str, Any]:
    from google.protobuf import descriptor_pb2  # noqa: PLC0415

    files = [importlib.import_module(module).DESCRIPTOR for module in _MODULES]
    return {file.name: descriptor_pb2.FileDescriptorProto.FromString(file.serialized_pb) for file in files}


def _add(pool: Any, file: Any, known: Mapping[str, Any], added: set[str]) -> None:
    """Add a file to the pool, after the files that it imports."""
    added.add(file.name)
    for name in file.dependency:
        if name not in known:
            raise ValueError(f"no reference has the imported file {name}")
        if name not in added:
            _add(pool, known[name], known, added)
    pool.AddSerializedFile(file.SerializeToString())


def _full_name(file: Any, indexes: tuple[int, ...]) -> str:
    """Return the full name of the message at a place of a file: the index among its messages, then among nested messages."""
    names, messages = [file.package] if file.package else [], file.message_type
    for index in indexes:
        if not 0 <= index < len(messages):
            raise errors.EventRejected("bad_frame", f"the schema has no message at {list(indexes)}")
        names.append(messages[index].name)
        messages = messages[index].nested_type
    return ".".join(names)
