"""Read the event on which a command tries a filter or a schema, as the job would read the event.

Runs in `fanout` commands. Needs neither Kafka nor Postgres.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from delivery import errors
from delivery.config import plan_builder, settings
from delivery.model import Event, Record
from delivery.webhooks.events import parsing

_STRUCTURED = (("content-type", parsing.STRUCTURED.encode() + b"+json"),)
"""The Kafka header by which a producer marks a CloudEvent in structured mode."""
EventText = Annotated[
    str, typer.Option("--event", help="The event as its producer writes it: JSON, a file, or `-` (standard input).")
]


def content(option: str, text: str, tried: str) -> bytes:
    """Return the bytes that the value of an option stands for.

    1. `text` is `-`: the standard input.
    2. `text` begins with { or [: the bytes of `text` itself.
    3. Otherwise: the content of the file with the name `text`.

    Raise RegistrationError if the file cannot be read, or if `text` or the standard input is empty. For the message, `option`
    is the option with the value `text`, and `tried` is the thing that the command tries, such as `filter`.
    """
    if text == "-":
        if not (read := sys.stdin.buffer.read()):
            raise errors.RegistrationError(
                option, f"standard input is empty, or another option has read it, so the {tried} was not tried: name a file"
            )
        return read
    if not text:
        raise errors.RegistrationError(option, f"is empty, so the {tried} was not tried: write JSON, or name a file")
    if text.lstrip().startswith(("{", "[")):
        return text.encode(errors="surrogateescape")  # as the shell has passed the bytes, which may not be UTF-8
    try:
        return Path(text).read_bytes()
    except OSError as exc:
        raise errors.RegistrationError(
            option,
            f"is neither JSON nor a readable file ({exc.strerror}), so the {tried} was not tried: write JSON that begins with "
            "{ or [, or name a file",
        ) from None


def read(config: settings.Settings, text: str, tried: str) -> Event:
    """Return the event of the option `--event`, whose value is `text`.

    Raise RegistrationError if the job would reject the event, and in the cases of `content`. `tried` has the same use as in
    `content`.
    """
    value = content("--event", text, tried)
    headers = _STRUCTURED if b'"specversion"' in value else ()
    record = Record(
        topic=config.source.topic_prefix + "tried", partition=0, offset=0, appended_at_ms=0, value=value, headers=headers
    )
    try:
        return parsing.parse(record, plan_builder.layout_of(config))
    except errors.EventRejected as exc:
        raise errors.RegistrationError(
            "--event",
            f"the {tried} was not tried: the job would reject this event ({exc.reason}: {exc.detail}). Correct the event",
        ) from None
