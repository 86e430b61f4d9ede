"""Sort the entries of Protobuf maps in JSON. Pure. Runs in the executors, the archive and the commands.

Protobuf yields the entries of a map in an order that differs from process to process. The ids of events may depend on the
payload (`source.reused_ids`), so each process must make the same JSON.
"""

from __future__ import annotations

from typing import Any

_FREE_FORM = frozenset({"google.protobuf.Any", "google.protobuf.ListValue", "google.protobuf.Struct", "google.protobuf.Value"})
"""Message types whose JSON may have further objects that the type's descriptor does not show. All objects in the JSON of these
types are sorted by their keys."""


def sorted_by_key(document: Any, message: Any) -> Any:
    """Return the JSON of a message with sorted maps. The fields of messages keep their order, except in free-form parts.

    In a message of _FREE_FORM, and in an extension of proto2, all objects are sorted.
    `document` is what `json_format.MessageToDict` returned with the names of the `.proto` file. `message` is the descriptor.
    """
    if message.full_name in _FREE_FORM:
        return _sorted(document)
    if not isinstance(document, dict):  # a message with a JSON of its own, such as Timestamp
        return document
    return {name: _field(part, message.fields_by_name.get(name)) for name, part in document.items()}


def _field(part: Any, field: Any) -> Any:
    if field is None:  # an extension of proto2, whose name is `[shop.extra]` in JSON
        return _sorted(part)
    message = field.message_type
    if message is None:
        return part
    if message.GetOptions().map_entry:
        value = message.fields_by_name["value"].message_type
        return {key: part[key] if value is None else sorted_by_key(part[key], value) for key in sorted(part)}
    if field.is_repeated:
        return [sorted_by_key(item, message) for item in part]
    return sorted_by_key(part, message)


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value
