"""`fanout rejected`: find and show rejected records.

Runs in `fanout` commands. A command reads the rejected topic from its start, or from `--since`. There is no index, because
these commands are rare.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import heapq
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import confluent_kafka
import msgspec
import rich.console

from delivery import errors
from delivery.config import settings
from delivery.webhooks.results import rejected_records
from delivery.webhooks.results.rejected_records import RejectedRecord
from fanout.kafka import topic_scanner
from fanout.kafka.places import Place
from fanout.redrive.selection import RejectedSelection
from fanout.terminal import times

_NAME = re.compile(r"(?P<partition>[0-9]+):(?P<offset>[0-9]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRejected:
    """A rejected record, and its partition, offset and time in the rejected topic."""

    partition: int
    offset: int
    rejected_at_ms: int
    record: RejectedRecord

    @property
    def name(self) -> str:
        """Return `partition:offset` in the rejected topic, by which `fanout rejected show` finds the record."""
        return f"{self.partition}:{self.offset}"

    def row(self) -> dict[str, Any]:
        """Return the row of this record in the table of `fanout rejected list`: title of the column → value."""
        record = self.record
        return {
            "rejected": self.name,
            "at": times.shown(self.rejected_at_ms),
            "reason": record.reason,
            "record": f"{record.topic}:{record.partition}:{record.offset}",
            "detail": record.detail,
        }

    def summary(self) -> dict[str, Any]:
        """Return the record for `fanout rejected list --json`: without its headers and its value."""
        document = self.document()
        del document["headers"], document["value_base64"]
        return document

    def document(self) -> dict[str, Any]:
        """Return the whole record as a dictionary for JSON output."""
        return {"rejected": self.name, "rejected_at_ms": self.rejected_at_ms, **msgspec.to_builtins(self.record)}


class RejectedReader:
    """Read the rejected topic.

    All methods except `close` raise KafkaUnavailable if Kafka does not answer or refuses a request, and RecordUnreadable if a
    record of the rejected topic is not one that the job writes.
    """

    def __init__(self, config: settings.Settings, console: rich.console.Console | None = None) -> None:
        self._config = config
        self._topic = config.delivery.rejected_topic
        self._scanner = topic_scanner.Scanner(config.kafka, console)

    def require_topic(self) -> None:
        """Raise SettingsError if there is no rejected topic that this login may describe."""
        if self._topic not in self._scanner.names():
            raise errors.SettingsError(
                f"topic {self._topic} on {self._config.kafka.bootstrap_servers} does not exist, or this login may not describe "
                "it. No rejected record was read. Start the job, which creates the topic, correct "
                "delivery.rejected_topic, or grant the login Describe on the topic"
            )

    def each(self, selection: RejectedSelection, take: Callable[[FoundRejected], None]) -> None:
        """Call `take` with every selected record of the rejected topic, in order within each partition."""

        def taken(message: confluent_kafka.Message) -> None:
            found = _found(message)
            if selection.matches(found.record, found.rejected_at_ms):
                take(found)

        self._scanner.read(self._scanner.extents([self._topic], since_ms=selection.since_ms), "rejected records", taken)

    def get(self, name: str) -> FoundRejected:
        """Return the record of the rejected topic that `partition:offset` names. Raise SettingsError if there is none."""
        named, found = _NAME.fullmatch(name), list[FoundRejected]()
        if named:
            place, offset = Place(self._topic, int(named["partition"])), int(named["offset"])
            low, end = self._scanner.bounds(place)
            if low <= offset < end:
                extent = topic_scanner.Extent(place=place, low=low, first=offset, end=offset + 1)
                self._scanner.read([extent], "the rejected record", lambda message: found.append(_found(message)))
        if not found:
            raise errors.SettingsError(
                f"there is no rejected record {name} in Kafka, so nothing is shown: it may have expired, or the name is wrong. "
                "`fanout rejected list` lists the newest; --limit shows more"
            )
        return found[0]

    def close(self) -> None:
        """Close the connection to Kafka."""
        self._scanner.close()


def find(reader: RejectedReader, selection: RejectedSelection, limit: int) -> list[FoundRejected]:
    """Return the newest of the selected records, at most `limit`, in order from the newest to the oldest.

    The records come without their values and headers, because `limit` may be large.
    """
    newest: list[tuple[int, int, int, FoundRejected]] = []

    def take(whole: FoundRejected) -> None:
        found = dataclasses.replace(whole, record=msgspec.structs.replace(whole.record, headers=[], value_base64=None))
        add = heapq.heappush if len(newest) < limit else heapq.heappushpop
        add(newest, (found.rejected_at_ms, found.partition, found.offset, found))

    reader.each(selection, take)
    return [found for *_, found in sorted(newest, reverse=True)]


def show(console: rich.console.Console, found: FoundRejected) -> None:
    """Print one rejected record for a person: its fields, its headers and its value."""
    record = found.record
    fields = {
        **found.row(),
        "appended at": times.shown(record.appended_at_ms),
        "bytes": "none: a tombstone" if record.value_bytes is None else str(record.value_bytes),
    }
    for name, shown in fields.items():
        console.print(f"{name:20}", shown)
    for header in record.headers:
        console.print(f"{f'header {header.name}':20}", _text(header.value_base64))
    if record.value_base64 is not None:
        console.print(_text(record.value_base64))


def _text(base64_text: str) -> str:
    """Return the bytes in a base64 text as text; the base64 text itself if it is not valid (another program wrote it)."""
    try:
        return base64.b64decode(base64_text, validate=True).decode(errors="replace")
    except ValueError:
        return base64_text


@contextlib.contextmanager
def reading(config: settings.Settings, console: rich.console.Console | None = None) -> Iterator[RejectedReader]:
    """Yield a reader, and close it afterwards. Raise SettingsError if there is no rejected topic."""
    with contextlib.closing(RejectedReader(config, console)) as reader:
        reader.require_topic()
        yield reader


def _found(message: confluent_kafka.Message) -> FoundRejected:
    return FoundRejected(
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        rejected_at_ms=message.timestamp()[1],
        record=rejected_records.decode(message.value() or b""),
    )
