"""Split a batch record: a Kafka record with a JSON array of CloudEvents becomes a record for each event. Pure.

`refuse` runs wherever records are parsed, `event_records` in the executors. CloudEvents defines no batch for Kafka, so the
record has the content type of the HTTP binding. Each event keeps its bytes and is not checked here. The platform later reads
each new record like any other record, and may reject it (docs/adr/0049-batch-records-taken-apart.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, NoReturn

import msgspec

from delivery import errors
from delivery.model import Record
from delivery.webhooks.events import content_encoding

CONTENT_TYPE = b"application/cloudevents-batch+json"
"""Beginning of the content type of a batch record, in lower case."""
EVENT_CONTENT_TYPE = b"application/cloudevents+json"
"""Content type of each event's new record. Differs from CONTENT_TYPE, so that no record is split twice."""
MAX_EVENTS = 1000
"""Most events of a batch record, as in a request to `POST /v1/events`."""
MAX_WRITTEN_BYTES = 4 * 1024 * 1024
"""Most bytes of all new records of one batch record together. Each new record repeats the headers, so headers of 200 KiB and a
thousand events would be 200 MB."""
_NOT_COPIED = frozenset({"content-type", content_encoding.HEADER})
"""Names, in lower case, of the headers that describe the value of the batch record. These headers are not copied to the new
records."""
_MAX_VALUE_BYTES = 1024 * 1024
"""Bound of decompression, in bytes: above the largest allowed `source.max_event_bytes`. The parser has checked the record by
this setting before."""
_ARRAY: msgspec.json.Decoder[list[msgspec.Raw]] = msgspec.json.Decoder(list[msgspec.Raw])

Headers = tuple[tuple[str, bytes], ...]


class BatchRecord(NamedTuple):
    """A batch record that the parser has checked, still whole.

    Its events become records of their own only when they are written to Kafka (`event_writer`), because a task may hold
    thousands of batch records.
    """

    record: Record
    events: int
    """Number of the events."""
    written_bytes: int
    """Bytes of the new records for the events, without keys."""


class EventRecord(NamedTuple):
    """The record for one event of a batch record, to write to the topic of the batch record."""

    topic: str
    partition: int
    """The partition of the batch record, so that events stay in their order, whichever partitioner the producer has."""
    key: bytes | None
    value: bytes
    headers: Headers


def refuse(headers: Headers, value: bytes, *, takes_apart: bool) -> NoReturn:
    """Raise BatchFound for a batch record that is to be split into its events, or EventRejected if the record is rejected.

    `value` is the record's value, decompressed. The record is rejected in four cases:
    1. `takes_apart` is false: the operator has not allowed to split batch records.
    2. `value` is no JSON array, or is nested too deeply.
    3. The array is empty.
    4. The array has more than MAX_EVENTS events, or their records would have more than MAX_WRITTEN_BYTES without keys.
    """
    if not takes_apart:
        raise errors.EventRejected(
            "unsupported",
            "the record is a batch of CloudEvents: write each event as a record of its own, with application/cloudevents+json. "
            'Or the operator sets source.batch_records to "taken_apart"',
        )
    try:
        events = _split(value)
    except RecursionError as exc:
        raise errors.EventRejected(
            "not_json", "the batch is nested too deeply: write its events again, with less nesting"
        ) from exc
    except msgspec.DecodeError as exc:  # its text quotes nothing of the value
        raise errors.EventRejected(
            "not_json", f"the batch is no JSON array ({exc}): write a JSON array of CloudEvents"[:200]
        ) from exc
    if not events:
        raise errors.EventRejected("empty", "the batch has no event: write no record if there is no event")
    written = sum(map(len, events)) + len(events) * sum(len(name) + len(content) for name, content in _copied(headers))
    if len(events) > MAX_EVENTS or written > MAX_WRITTEN_BYTES:
        raise errors.EventRejected(
            "too_large",
            f"the batch has {len(events)} events, which take {written} bytes as records with the headers of the batch; at most "
            f"{MAX_EVENTS} events and {MAX_WRITTEN_BYTES} bytes are accepted: write smaller batches",
        )
    raise errors.BatchFound(len(events), written)


def event_records(batch: BatchRecord) -> Iterator[EventRecord]:
    """Yield the record of each event, in the order of the events.

    Each record is in structured mode. Partition, key and headers are those of the batch record, except the headers in
    _NOT_COPIED.
    """
    record = batch.record
    named, value = {name.lower(): content for name, content in record.headers}, record.value or b""
    if content_encoding.HEADER in named:
        value = content_encoding.decoded(value, named[content_encoding.HEADER], _MAX_VALUE_BYTES)
    headers = (*_copied(record.headers), ("content-type", EVENT_CONTENT_TYPE))
    for event in _split(value):
        yield EventRecord(record.topic, record.partition, record.key, event, headers)


def _split(value: bytes) -> list[bytes]:
    return [bytes(event) for event in _ARRAY.decode(value)]


def _copied(headers: Headers) -> Headers:
    return tuple(header for header in headers if header[0].lower() not in _NOT_COPIED)
