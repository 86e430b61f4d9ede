"""Read records of topics with a schema registry as events. Runs in the event loop of a worker, and in the commands.

Each worker process has one Decoder. A schema never changes under its id, so cached schemas do not expire, and are used while
the schema registry is away. A record whose schema is not cached then waits, and is not rejected
(delivery.webhooks.routing.intake).
"""

from __future__ import annotations

import asyncio
import functools
import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import cachetools

from delivery import errors
from delivery.model import Event, Record
from delivery.payload_form import Framed
from delivery.webhooks.events import content_encoding, opaque, parsing
from delivery.webhooks.formats import registry_client, schemas, wire_format

UNKNOWN_S = 30.0
"""Seconds for which the schema registry is not asked again for a schema that it does not have. Often many records in a row have
the same wrong id."""
AWAY_S = 3.0
"""Seconds for which an absent schema registry is not asked again. Each request waits for `Access.wait_s`, and the records of
hundreds of partitions would wait one after another."""
_CONTENT_TYPE = "content-type"


@dataclass(frozen=True, slots=True, kw_only=True)
class Formats:
    """The settings of a Decoder, as plain values. Only `access` has a secret, which no repr shows."""

    access: registry_client.Access
    topic_pattern: str
    """Regular expression for the whole names of topics whose values may be framed."""
    max_schemas: int = 1000
    """Most schemas in the cache. The least recently used are dropped."""


class Reader(Protocol):
    """Reads schemas from the schema registry. Called in a thread, because it waits."""

    def schema(self, schema_id: int) -> schemas.Schema | None:
        """Return a schema with all schemas that it needs; None: the schema registry does not have one of them.

        Raise SchemaRegistryUnavailable if the schema registry is away.
        """


class _Known(NamedTuple):
    """A schema in the cache."""

    decode: schemas.Decode
    media_type: str


class Decoder:
    """Read events from records. In the topics of `formats`, decode framed values by their schema first."""

    def __init__(
        self, formats: Formats, layout: parsing.Layout, reader: Reader, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pattern = re.compile(formats.topic_pattern)
        self._layout = layout
        self._reader = reader
        self._known: cachetools.LRUCache[int, _Known] = cachetools.LRUCache(maxsize=formats.max_schemas)
        self._unknown: cachetools.TTLCache[int, None] = cachetools.TTLCache(formats.max_schemas, UNKNOWN_S, timer=clock)
        self._clock = clock
        self._away: tuple[float, str] = (-math.inf, "")
        """Until when the registry is not asked again, and the text of its last error."""
        self._reads_topic = functools.lru_cache(maxsize=10_000)(self._matches)

    async def event(self, record: Record) -> Event:
        """Return the event in `record`. Raise EventRejected, or SchemaRegistryUnavailable if the record must wait.

        Waits for the schema registry if the record's schema is not cached.
        The reasons of EventRejected are those of `parsing.parse`, and: bad_frame, unknown_schema.
        """
        value = record.value
        if not value or not self._reads_topic(record.topic):
            return parsing.parse(record, self._layout)
        parsing.require_size(record, value, self._layout)
        headers = {name.lower(): content for name, content in record.headers}
        if content_encoding.HEADER in headers:
            value = content_encoding.decoded(value, headers[content_encoding.HEADER], self._layout.max_bytes)
        if not wire_format.is_framed(value):
            return parsing.parse(record, self._layout)
        frame = wire_format.frame_of(value)
        known = self._known.get(frame.schema_id) or await self._compiled(frame.schema_id)
        decoded = record._replace(value=known.decode(frame.body), headers=tuple(filter(_is_kept, record.headers)))
        parsing.require_size(record, decoded.value, self._layout)  # with the headers that are not kept: a dead letter has them
        framed = Framed(value, frame.schema_id, _media_type(headers) or known.media_type)
        return parsing.parse(decoded, self._layout)._replace(record=record, framed=framed)

    def event_now(self, record: Record) -> Event:
        """Return the event in `record`, as `event` does. Called where no event loop runs."""
        return asyncio.run(self.event(record))

    def _matches(self, topic: str) -> bool:
        return topic != self._layout.operational_topic and self._pattern.fullmatch(topic) is not None

    async def _compiled(self, schema_id: int) -> _Known:
        if schema_id not in self._unknown:
            until, text = self._away
            if self._clock() < until:
                raise errors.SchemaRegistryUnavailable(text)
            try:
                # In a thread: requests in flight must not time out while the schema registry is slow or away.
                known = await asyncio.to_thread(self._read, schema_id)
            except errors.SchemaRegistryUnavailable as exc:
                self._away = (self._clock() + AWAY_S, str(exc))
                raise
            if known is not None:
                self._known[schema_id] = known
                return known
            self._unknown[schema_id] = None
        raise errors.EventRejected("unknown_schema", f"the schema registry lacks schema {schema_id}, or one that it refers to")

    def _read(self, schema_id: int) -> _Known | None:
        found = self._reader.schema(schema_id)
        return None if found is None else _Known(schemas.compiled(schema_id, found), schemas.media_type(found.schema_type))


def decoder_of(formats: Formats | None, layout: parsing.Layout) -> Decoder | None:
    """Return the decoder of a process; None: there is no schema registry."""
    return None if formats is None else Decoder(formats, layout, registry_client.RegistryClient(formats.access))


def _media_type(headers: Mapping[str, bytes]) -> str:
    """Return the media type of the framed value by its record; "": it names none, or that of the JSON in the frame."""
    text = headers.get(_CONTENT_TYPE, b"").decode(errors="replace").strip()
    return text if opaque.is_media_type(text) and not opaque.is_json(text) else ""


def _is_kept(header: tuple[str, bytes]) -> bool:
    """Return False for a header that describes the bytes before they were decoded.

    A `content-type` of structured mode is kept: it says that the JSON is a CloudEvent.
    """
    name, content = header[0].lower(), header[1]
    if name == _CONTENT_TYPE:
        return content.strip().lower().startswith(f"{parsing.STRUCTURED}+json".encode())
    return name != content_encoding.HEADER
