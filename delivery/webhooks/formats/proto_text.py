"""Parse the text of a `.proto` file into a FileDescriptorProto. Pure. Runs in the executors, the archive and the commands.

Some schema registries do not return Protobuf schemas as FileDescriptorProto, only as the text that a producer registered. This
module makes the descriptor. The descriptor has what decoding needs: messages, enums, fields and imports. Services, extensions,
default values and options are left out, except the option `allow_alias`. Names of types stay as written: Protobuf's pool looks
them up in the scopes around the field, as `protoc` does.

Source: "Protocol Buffers Language Specification", proto2 and proto3.
"""

from __future__ import annotations

import re
from typing import Any

from google.protobuf import descriptor_pb2

_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)
    |(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<word>\.?[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)
    |(?P<number>[0-9.][\w.]*(?:(?<=[eE])[+-]\d+)?)
    |(?P<symbol>[{}\[\]()<>=;,:/+-])""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_LABELS = {"optional": 1, "required": 2, "repeated": 3}
_SCALARS = {
    "double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "fixed64": 6, "fixed32": 7, "bool": 8, "string": 9,
    "bytes": 12, "uint32": 13, "sfixed32": 15, "sfixed64": 16, "sint32": 17, "sint64": 18,
}  # fmt: skip
"""Name of a scalar type → its number in a FieldDescriptorProto."""
_MESSAGE = 11
_LEFT_OUT = frozenset({"option", "reserved", "extensions"})
"""Statements without an effect on decoding, each ended by a semicolon."""
_BRACKETS = {"{": "}", "[": "]", "(": ")"}


def descriptor_of(text: str) -> descriptor_pb2.FileDescriptorProto:
    """Return the descriptor of a `.proto` file. The descriptor's `name` is empty.

    Raise ValueError if the text cannot be parsed as proto2 or proto3, or has a group. Raise RecursionError if messages are
    nested too deeply.
    """
    return _Parser(_tokens(text)).file()


def _tokens(text: str) -> list[str]:
    found, position = [], 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise ValueError(f"the text of the .proto file is not valid at {text[position : position + 20]!a}")
        if token.lastgroup != "space":
            found.append(token[0])
        position = token.end()
    return found


class _Parser:
    """Read the tokens of one file from left to right. Used once."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._next = 0
        self._is_proto3 = False

    def file(self) -> descriptor_pb2.FileDescriptorProto:
        """Read all tokens, and return the descriptor of the file."""
        file = descriptor_pb2.FileDescriptorProto()
        while self._next < len(self._tokens):
            word = self._take()
            if word == "message":
                self._message(file.message_type.add())
            elif word == "enum":
                self._enum(file.enum_type.add())
            elif word in {"service", "extend"}:
                self._skip_block()
            elif word == "option":
                self._skip_to(";")
            elif word != ";":
                self._head(file, word)
        return file

    def _head(self, file: Any, word: str) -> None:
        """Read a statement about the file itself (syntax, package or import), after its first word."""
        if word == "syntax":
            self._expect("=")
            file.syntax = self._string()
            self._is_proto3 = file.syntax == "proto3"
        elif word == "package":
            file.package = self._take()
        elif word == "import":
            if self._peek() in {"public", "weak"} and self._take() == "public":
                file.public_dependency.append(len(file.dependency))
            file.dependency.append(self._string())
        else:
            raise ValueError(f"the .proto file has {word[:40]!a} at its top level, which is no statement of proto2 or proto3")
        self._expect(";")

    def _message(self, message: Any) -> None:
        """Read a message from its name on.

        For each map field, a nested message is added for the entries of the map. These messages come after the declared ones,
        because the Confluent wire format numbers declared messages only.
        """
        message.name = self._take()
        self._expect("{")
        entries: list[Any] = []
        while (word := self._take()) != "}":
            if word == "message" and self._is_declaration():
                self._message(message.nested_type.add())
            elif word == "enum" and self._is_declaration():
                self._enum(message.enum_type.add())
            elif word == "oneof" and self._is_declaration():
                self._oneof(message)
            elif word == "extend" and self._peek(1) == "{":
                self._skip_block()
            elif word in _LEFT_OUT:
                self._skip_to(";")
            elif word != ";":
                self._field(message, word, entries)
        message.nested_type.extend(entries)
        for field in message.field:  # after all others: the oneof that Protobuf makes for an `optional` field of proto3
            if field.proto3_optional:
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field.name}")

    def _oneof(self, message: Any) -> None:
        index = len(message.oneof_decl)
        message.oneof_decl.add(name=self._take())
        self._expect("{")
        while (word := self._take()) != "}":
            if word == "option":
                self._skip_to(";")
            elif word != ";":
                self._field(message, word, []).oneof_index = index

    def _field(self, message: Any, word: str, entries: list[Any]) -> Any:
        """Read a field after its first word, add it to the message, and return it.

        For a map field, also add the message of the map's entries to `entries`.
        """
        field = message.field.add(label=_LABELS["optional"])
        if word in _LABELS:
            field.label = _LABELS[word]
            field.proto3_optional = self._is_proto3 and word == "optional"
            word = self._take()
        if word == "map" and self._peek() == "<":
            self._expect("<")
            key = self._take()
            self._expect(",")
            value = self._take()
            self._expect(">")
            field.name = self._take()
            entry = _entry(field.name, key, value)
            entries.append(entry)
            field.label, field.type, field.type_name = _LABELS["repeated"], _MESSAGE, entry.name
        else:
            if word == "group":
                raise ValueError("the .proto file has a group: groups are not read")
            _set_type(field, word)
            field.name = self._take()
        self._expect("=")
        field.number = self._integer()
        if self._peek() == "[":
            self._expect("[")
            self._skip_to("]")
        self._expect(";")
        return field

    def _enum(self, enum: Any) -> None:
        enum.name = self._take()
        self._expect("{")
        while (word := self._take()) != "}":
            if word == "option" and self._peek() == "allow_alias":
                enum.options.allow_alias = True
            if word in {"option", "reserved"} and self._peek() != "=":
                self._skip_to(";")
            elif word != ";":
                self._expect("=")
                enum.value.add(name=word, number=self._integer())
                if self._peek() == "[":
                    self._expect("[")
                    self._skip_to("]")
                self._expect(";")

    def _is_declaration(self) -> bool:
        """Return True if a name and a brace follow. Otherwise the word that was read last is the type of a field."""
        return self._peek(1) == "{"

    def _skip_block(self) -> None:
        """Skip a name, and a block in braces after it."""
        self._take()
        self._expect("{")
        self._skip_to("}")

    def _skip_to(self, end: str) -> None:
        """Skip all tokens up to the first `end` that is not inside nested brackets, and this `end` too."""
        open_brackets: list[str] = []
        while (token := self._take()) != end or open_brackets:
            if token in _BRACKETS:
                open_brackets.append(_BRACKETS[token])
            elif open_brackets and token == open_brackets[-1]:
                open_brackets.pop()

    def _peek(self, further: int = 0) -> str:
        place = self._next + further
        return self._tokens[place] if place < len(self._tokens) else ""

    def _take(self) -> str:
        if self._next >= len(self._tokens):
            raise ValueError("the .proto file ends early")
        self._next += 1
        return self._tokens[self._next - 1]

    def _expect(self, wanted: str) -> None:
        found = self._take()
        if found != wanted:
            raise ValueError(f"the .proto file has {found[:40]!a} in place of {wanted!a}")

    def _string(self) -> str:
        text = self._take()
        if text[:1] not in {'"', "'"}:
            raise ValueError(f"the .proto file has {text[:40]!a} in place of a string")
        return text[1:-1]

    def _integer(self) -> int:
        sign = -1 if self._peek() == "-" else 1
        if sign < 0:
            self._take()
        text = self._take()
        is_octal = text.startswith("0") and text.isdigit()
        return sign * int(text, 8 if is_octal else 0)


def _set_type(field: Any, name: str) -> None:
    """Set the type of a field. Protobuf's pool finds out whether a type that is not scalar is a message or an enum."""
    if name in _SCALARS:
        field.type = _SCALARS[name]
    else:
        field.type_name = name


def _entry(field_name: str, key: str, value: str) -> Any:
    """Return the message type for the entries of a map field, with the name that `protoc` gives it."""
    name = "".join(part[:1].upper() + part[1:] for part in field_name.split("_")) + "Entry"
    entry = descriptor_pb2.DescriptorProto(name=name)
    entry.options.map_entry = True
    for number, (called, type_name) in enumerate((("key", key), ("value", value)), start=1):
        _set_type(entry.field.add(name=called, number=number, label=_LABELS["optional"]), type_name)
    return entry
