"""Read records as events, and decode values by the schemas of a schema registry.

Runs in the event loop of a worker, in the archive and in the commands.

If a schema registry is set, each worker process has one Decoder. A schema never changes under its id, so cached schemas do not
expire, and are used while the schema registry is unavailable. Meanwhile a record whose schema is not cached waits, and is not
rejected (delivery.webhooks.routing.intake).
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
"""Seconds for which the schema registry is not asked again after it gave no usable answer. If it refused one schema only, it is
still asked for other schemas. Without this pause, the records of hundreds of partitions would wait for the schema registry one
after another, each for `Access.wait_s` or longer."""
_CONTENT_TYPE = "content-type"


@dataclass(frozen=True, slots=True, kw_only=True)
class Formats:
    """The settings of a Decoder. Only `access` holds a secret, the password. No repr shows the password."""

    access: registry_client.Access
    topic_pattern: str
    """Regular expression for the whole names of topics whose values may be in the Confluent wire format. The operational topic
    (of the platform's own events) is left out, even if it matches."""
    max_schemas: int = 1000
    """Most schemas in the cache. The least recently used are dropped."""


class PayloadReader(Protocol):
    """Reads schemas from the schema registry. Called outside the event loop's thread, because a call may wait."""

    def schema(self, schema_id: int) -> schemas.Schema | None:
        """Return a schema with all schemas that decoding needs. None: the schema registry lacks one of these schemas.

        Raise SchemaRegistryUnavailable if the schema registry gives no usable answer.
        """


class _Known(NamedTuple):
    """A schema in the cache."""

    decode: schemas.Decode
    media_type: str


class Decoder:
    """Read events from records. In topics that match `formats.topic_pattern`, first decode values by their schema.

    Only values in the Confluent wire format (framed values) are decoded.
    """

    def __init__(
        self, formats: Formats, layout: parsing.Layout, reader: PayloadReader, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pattern = re.compile(formats.topic_pattern)
        self._layout = layout
        self._reader = reader
        self._known: cachetools.LRUCache[int, _Known] = cachetools.LRUCache(maxsize=formats.max_schemas)
        self._unknown: cachetools.TTLCache[int, None] = cachetools.TTLCache(formats.max_schemas, UNKNOWN_S, timer=clock)
        self._unusable: cachetools.TTLCache[int, str] = cachetools.TTLCache(formats.max_schemas, AWAY_S, timer=clock)
        """The text of the error, by the id of each schema for which the schema registry has just had no usable answer."""
        self._clock = clock
        self._away: tuple[float, str] = (-math.inf, "")
        """A pair: the time by `clock` until which the schema registry is not asked again, and the text of the last error."""
        self._reads_topic = functools.lru_cache(maxsize=10_000)(self._matches)

    async def event(self, record: Record) -> Event:
        """Return the event in `record`. Wait for the schema registry if the registry has to be asked for the record's schema.

        If a schema decoded the record's value, `Event.framed` has the value from before decoding: decompressed, with its frame.

        Raise EventRejected if the record is not an event; the reasons are those of `parsing.parse`, bad_frame and
        unknown_schema. Raise BatchFound as `parsing.parse` does. Raise SchemaRegistryUnavailable if the schema cannot be read
        now: the record must wait. A missing schema is remembered for UNKNOWN_S, an outage for AWAY_S. If the schema registry
        refuses this schema only, the refusal is remembered for AWAY_S, and other schemas are asked for as before.
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
        parsing.require_room(record, opaque.base64_bytes(value))  # an endpoint may get the value as the producer wrote it
        framed = Framed(value, frame.schema_id, _media_type(headers) or known.media_type)
        return parsing.parse(decoded, self._layout)._replace(record=record, framed=framed)

    async def can_read(self, record: Record) -> bool:
        """Return False if the schema of a record cannot be read now, else True. Never raises."""
        try:
            await self.event(record)
        except errors.SchemaRegistryUnavailable:
            return False
        except Exception:  # noqa: BLE001  # rejected, a batch record, or unforeseen: the intake decides
            return True
        return True

    def event_now(self, record: Record) -> Event:
        """Return the event in `record`, as `event` does. Called where no event loop runs."""
        return asyncio.run(self.event(record))

    def _matches(self, topic: str) -> bool:
        return topic != self._layout.operational_topic and self._pattern.fullmatch(topic) is not None

    async def _compiled(self, schema_id: int) -> _Known:
        if schema_id not in self._unknown:
            until, outage = self._away
            failure = self._unusable.get(schema_id) or (outage if self._clock() < until else "")
            if failure:
                raise errors.SchemaRegistryUnavailable(failure)
            try:
                # In a thread: requests in flight must not time out while the schema registry is slow or away.
                known = await asyncio.to_thread(self._read, schema_id)
            except errors.SchemaRegistryUnavailable as exc:
                if exc.is_of_schema:
                    self._unusable[schema_id] = str(exc)
                else:
                    self._away = (self._clock() + AWAY_S, str(exc))
                raise
            if known is not None:
                self._known[schema_id] = known
                return known
            self._unknown[schema_id] = None
        raise errors.EventRejected(
            "unknown_schema",
            f"the schema registry lacks schema {schema_id}, or a schema that it refers to: register it there, and publish the "
            "event again",
        )

    def _read(self, schema_id: int) -> _Known | None:
        found = self._reader.schema(schema_id)
        return None if found is None else _Known(schemas.compiled(schema_id, found), schemas.media_type(found.schema_type))


def decoder_of(formats: Formats | None, layout: parsing.Layout) -> Decoder | None:
    """Return a new Decoder; None if `formats` is None, because the job has no schema registry."""
    return None if formats is None else Decoder(formats, layout, registry_client.RegistryClient(formats.access))


def _media_type(headers: Mapping[str, bytes]) -> str:
    """Return the media type of the framed value from the record's `content-type`. "": it is missing, or not valid, or JSON."""
    text = headers.get(_CONTENT_TYPE, b"").decode(errors="replace").strip()
    return text if opaque.is_media_type(text) and not opaque.is_json(text) else ""


def _is_kept(header: tuple[str, bytes]) -> bool:
    """Return True for a header that also describes the decoded value. The parser gets only these headers.

    Return False for `content-encoding`. Return False for `content-type`, with two exceptions:
    1. `content-type` is `application/cloudevents+json`. The decoded JSON is a CloudEvent.
    2. `content-type` is a JSON type for which `opaque.json_type_of` is not empty, such as `application/vnd.acme+json`. The
       framed value is no JSON, so this is the type of the decoded JSON.
    """
    name, content = header[0].lower(), header[1]
    if name == _CONTENT_TYPE:
        text = content.decode(errors="replace").strip()
        return text.lower().startswith(f"{parsing.STRUCTURED}+json") or opaque.json_type_of(text) != ""
    return name != content_encoding.HEADER
