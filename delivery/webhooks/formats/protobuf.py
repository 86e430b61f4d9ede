"""Convert Protobuf to JSON by the descriptors of its schema. Pure. Runs in the executors, the archive and the commands.

`is_descriptor` also runs in the driver, which asks the schema registry for a schema. The JSON has the "ProtoJSON Format" of the
Protobuf documentation. Fields have the names of the `.proto` file. A field without presence is written even with its default
value, so filters see `false`, 0 and "". docs/producing.md lists the JSON of each type.
"""

from __future__ import annotations

import base64
import binascii
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from delivery import errors
from delivery.webhooks.formats import protobuf_expansion, protobuf_maps, wire_format

_MAIN = "fanout/schema.proto"
"""File name that the schema gets, because the schema registry has no name for it. No other file may import this name."""
_MAX_SHOWN = 8
"""Most message indexes that an error shows. A value may have as many as it has bytes."""
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
    """Return a function that takes the body of a value in the Confluent wire format, and returns JSON, by the schema `text`.

    The body has the message indexes, then the message in Protobuf.

    The schema is a FileDescriptorProto in base64, or the text of a `.proto` file. `references` maps the name in an `import`
    line to the imported file, in either form. Raise ValueError with the reason if the schema cannot be used. The returned
    function raises EventRejected for a body that it cannot convert.
    """
    try:
        return _compiled(text, references)
    except Exception as exc:  # the descriptors come from the schema registry; Protobuf raises errors of several classes
        raise ValueError(f"{type(exc).__name__}: {exc}"[:200]) from exc


def is_descriptor(text: str) -> bool:
    """Return True if a schema is a FileDescriptorProto in base64; False for any other text, such as a `.proto` file."""
    return _descriptor(text) is not None


def _compiled(text: str, references: Mapping[str, str]) -> Callable[[bytes], bytes]:
    from google.protobuf import descriptor_pool, json_format, message_factory  # noqa: PLC0415  # as in `avro`

    pool = descriptor_pool.DescriptorPool()
    main = _file(_MAIN, text)
    _add(pool, main, {name: _file(name, reference) for name, reference in references.items()} | _built_in(), set())
    expansion = protobuf_expansion.ProtobufExpansion(pool)
    classes: dict[tuple[int, ...], tuple[Any, protobuf_expansion.Root]] = {}

    def class_of(indexes: tuple[int, ...]) -> tuple[Any, protobuf_expansion.Root]:
        if indexes not in classes:
            message = pool.FindMessageTypeByName(_full_name(main, indexes))
            classes[indexes] = message_factory.GetMessageClass(message), expansion.root(message)
        return classes[indexes]

    def decode(body: bytes) -> bytes:
        indexes, rest = wire_format.message_indexes(body)
        try:
            message_class, root = class_of(indexes)
            expansion.require_room(root, rest)
            message = message_class.FromString(rest)
            if root.has_any:
                expansion.require_room_for_any(message)
            document = json_format.MessageToDict(
                message,
                preserving_proto_field_name=True,
                always_print_fields_with_no_presence=True,
                descriptor_pool=pool,
            )
            return orjson.dumps(protobuf_maps.sorted_by_key(document, message_class.DESCRIPTOR))
        except errors.EventRejected:
            raise
        except Exception as exc:  # as in `avro`
            problem = f"the value does not decode by its Protobuf schema ({type(exc).__name__}: {exc}"[:150]
            raise errors.EventRejected("undecodable", f"{problem}): use a Protobuf serializer of the schema registry") from exc

    return decode


def _file(name: str, text: str) -> Any:
    from delivery.webhooks.formats import proto_text  # noqa: PLC0415  # it imports Protobuf

    file = _descriptor(text) or proto_text.descriptor_of(text)
    file.name = name
    return file


def _descriptor(text: str) -> Any:
    from google.protobuf import descriptor_pb2, message  # noqa: PLC0415

    try:
        return descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, message.DecodeError):
        return None


def _built_in() -> dict[str, Any]:
    from google.protobuf import descriptor_pb2  # noqa: PLC0415

    files = [importlib.import_module(module).DESCRIPTOR for module in _MODULES]
    return {file.name: descriptor_pb2.FileDescriptorProto.FromString(file.serialized_pb) for file in files}


def _add(pool: Any, file: Any, known: Mapping[str, Any], added: set[str]) -> None:
    """Add a file to the pool, after the files that it imports. Raise ValueError if `known` lacks an imported file."""
    added.add(file.name)
    for name in file.dependency:
        if name not in known:
            raise ValueError(
                f"it imports {name}, and the schema registry has no reference of this name: register the schema with one"
            )
        if name not in added:
            _add(pool, known[name], known, added)
    pool.AddSerializedFile(file.SerializeToString())


def _full_name(file: Any, indexes: tuple[int, ...]) -> str:
    """Return the full name of a message of `file`; raise EventRejected if there is none at `indexes`.

    The first of `indexes` is a place among the file's messages. Each later one is a place among the messages that are nested in
    the message before.
    """
    names, messages = [file.package] if file.package else [], file.message_type
    for index in indexes:
        if not 0 <= index < len(messages):
            shown = ", ".join(map(str, indexes[:_MAX_SHOWN])) + (", …" if len(indexes) > _MAX_SHOWN else "")
            problem = f"the schema has no message with the value's indexes [{shown}]: use a Protobuf serializer"
            raise errors.EventRejected("bad_frame", problem)
        names.append(messages[index].name)
        messages = messages[index].nested_type
    return ".".join(names)
