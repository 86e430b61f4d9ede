"""`fanout dead-letters`: find, show, export and redrive dead letters.

Runs in `fanout` commands. A command reads the dead-letter topic from its start, or from ten minutes before `--since`. There is
no index, because these commands are rare. `show` with `partition:offset` reads one record of the topic. `list`, `show` and
`redrive` also read the attempts and retries topics, whose notes say which dead letters were redriven before. Only `redrive`
writes to Kafka, with enqueue.py. redrive_plan.py says when a dead letter can be enqueued twice.
"""

from __future__ import annotations

import contextlib
import heapq
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import confluent_kafka
import msgspec
import rich.console
import rich.table

from delivery import errors
from delivery.config import settings
from delivery.stages.kafka import record_reader
from delivery.webhooks.results import dead_letter_records, log_records
from delivery.webhooks.results.dead_letter_records import DeadLetter
from fanout.kafka import topic_scanner
from fanout.kafka.places import Place
from fanout.redrive import enqueue, redrive_plan
from fanout.redrive.redrive_plan import Redriven
from fanout.redrive.selection import Selection
from fanout.terminal import commands, times

MARGIN_MS = 600_000
"""Milliseconds, ten minutes, by which reading begins before `--since`, because the clocks of writers and brokers differ."""
_PLACE = re.compile(r"(?:(?P<topic>.+):)?(?P<partition>[0-9]+):(?P<offset>[0-9]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A dead letter, its partition and offset in the dead-letter topic, and whether it was redriven."""

    place: Place
    offset: int
    letter: DeadLetter
    is_redriven: bool

    @property
    def name(self) -> str:
        """Return `partition:offset`, by which `fanout dead-letters show` finds the dead letter."""
        return f"{self.place.partition}:{self.offset}"

    def row(self) -> dict[str, Any]:
        """Return the row of this dead letter in the table of `fanout dead-letters list`: title of the column → value."""
        letter = self.letter
        return {
            "letter": self.name,
            "given up": times.shown(letter.dead_lettered_at_ms),
            "endpoint": letter.endpoint_id,
            "type": letter.event_type,
            "tenant": letter.tenant_id,
            "reason": letter.reason,
            "attempts": letter.last_attempt,
            "redriven": "yes" if self.is_redriven else "",
        }

    def summary(self) -> dict[str, Any]:
        """Return the dead letter for `fanout dead-letters list --json`: without payload, headers and the list of attempts.

        `attempts` is the number of the last attempt.
        """
        document = self.document()
        for name in ("payload_base64", "headers", "attempts"):
            del document[name]
        return document | {"attempts": self.letter.last_attempt}

    def document(self) -> dict[str, Any]:
        """Return the whole dead letter as a dictionary for JSON output."""
        letter: dict[str, Any] = {"batch_webhook_id": None, "replay": None, "attributes": {}} | msgspec.to_builtins(self.letter)
        return {"letter": self.name, "letter_topic": self.place.topic, "redriven": self.is_redriven, **letter}


class DeadLetterReader:
    """Read dead letters, and the notes of earlier redrives.

    All methods except `close` raise KafkaUnavailable if Kafka does not answer or refuses a request.
    """

    def __init__(self, config: settings.Settings, console: rich.console.Console | None = None) -> None:
        self._config = config.delivery
        self._servers = config.kafka.bootstrap_servers
        self._scanner = topic_scanner.Scanner(config.kafka, console)

    def require_topic(self) -> None:
        """Raise SettingsError if there is no dead-letter topic that this login may describe."""
        if self._config.dead_letter_topic not in self._scanner.names():
            raise errors.SettingsError(
                f"topic {self._config.dead_letter_topic} on {self._servers} does not exist, or this login may not describe it. "
                "No dead letter was read or changed. Start the job, which creates the topic, correct "
                "delivery.dead_letter_topic, or grant the login Describe on the topic"
            )

    def redriven(self, since_ms: int | None = None) -> Redriven:
        """Return which dead letters were redriven, by the notes that were written since `since_ms`; None: by all notes.

        A redrive writes a note about each dead letter that it enqueues, to the attempts and the retries topic. A note is
        written after its dead letter. So the result includes every redriven dead letter that was written since `since_ms`.
        """
        redriven = Redriven()
        since_ms = _earlier(since_ms)

        def add(written: bytes) -> None:
            with contextlib.suppress(msgspec.DecodeError):  # written by another program, so it is no note of a redrive
                redriven.add(log_records.decode(written))

        def add_log(message: confluent_kafka.Message) -> None:
            add(message.value() or b"")

        def add_retries(message: confluent_kafka.Message) -> None:
            for name, value in record_reader.headers_of(message):
                if name == redrive_plan.NOTE:
                    add(value)

        for name, consume in {self._config.attempts_topic: add_log, self._config.retries_topic: add_retries}.items():
            self._scanner.read(self._scanner.extents([name], since_ms=since_ms), name, consume)
        return redriven

    def has_all_notes(self, since_ms: int | None = None) -> bool:
        """Return True if the attempts topic, or else the retries topic, still has every record written since `since_ms`.

        `since_ms` None: every record ever written. A redrive writes each note to both topics, so a complete topic has all
        notes. One case is not noticed: the last notes of a redrive that was killed are only in the retries topic. These notes
        may be lost although the attempts topic has lost nothing. A partition that had records and has none now counts as a
        partition that has lost records.
        """
        names = (self._config.attempts_topic, self._config.retries_topic)
        ranges = [self._scanner.extents([name], since_ms=_earlier(since_ms)) for name in names]
        return any(all(extent.is_whole for extent in of_topic) for of_topic in ranges)

    def extents(self, since_ms: int | None = None) -> list[topic_scanner.Extent]:
        """Return ranges of offsets with all dead letters that were written since `since_ms`; None: with all dead letters.

        The ranges begin MARGIN_MS earlier, so they also have some older dead letters.
        """
        return self._scanner.extents([self._config.dead_letter_topic], since_ms=_earlier(since_ms))

    def read(self, extents: list[topic_scanner.Extent], take: Callable[[Place, int, bytes], None]) -> None:
        """Call `take` with the place, the offset and the value of every dead letter in `extents`.

        Raise RecordUnreadable if `take` raises because it cannot decode a record.
        """

        def taken(message: confluent_kafka.Message) -> None:
            take(Place(str(message.topic()), message.partition() or 0), message.offset() or 0, message.value() or b"")

        self._scanner.read(extents, "dead letters", taken)

    def missing_topic(self) -> str | None:
        """Return the name of the attempts or retries topic, whichever is missing; None: both exist.

        A topic that this login may not describe counts as missing.
        """
        known = self._scanner.names()
        return next((name for name in (self._config.attempts_topic, self._config.retries_topic) if name not in known), None)

    def close(self) -> None:
        """Close the connection to Kafka."""
        self._scanner.close()


def find(reader: DeadLetterReader, selection: Selection, limit: int) -> list[Found]:
    """Return the newest of the selected dead letters, at most `limit`, in order from the newest to the oldest."""
    redriven = reader.redriven(selection.since_ms)
    newest: list[tuple[int, Place, int, Found]] = []

    def take(place: Place, offset: int, written: bytes) -> None:
        letter = dead_letter_records.decode(written)
        if selection.matches(letter):
            found = Found(place=place, offset=offset, letter=letter, is_redriven=redriven.has(letter))
            add = heapq.heappush if len(newest) < limit else heapq.heappushpop
            add(newest, (letter.dead_lettered_at_ms, place, offset, found))

    reader.read(reader.extents(selection.since_ms), take)
    return [found for *_, found in sorted(newest, reverse=True)]


def get(reader: DeadLetterReader, name: str) -> Found:
    """Return the dead letter that `name` names.

    1. `partition:offset` or `topic:partition:offset` names the record of the dead-letter topic.
    2. A `webhook-id`, of an event or of a batch, names the newest dead letter with this `webhook-id`.

    Raise SettingsError if there is no such dead letter.
    """
    redriven, extents = reader.redriven(), reader.extents()
    named = _PLACE.fullmatch(name)
    if named:
        extents = [
            topic_scanner.Extent(place=extent.place, low=extent.low, first=int(named["offset"]), end=int(named["offset"]) + 1)
            for extent in extents
            if extent.place.partition == int(named["partition"])
            and named["topic"] in {None, extent.place.topic}
            and extent.low <= int(named["offset"]) < extent.end
        ]
    newest: Found | None = None

    def take(place: Place, offset: int, written: bytes) -> None:
        nonlocal newest
        if named or name.encode() in written:
            letter = dead_letter_records.decode(written)
            is_named = named or name in {letter.webhook_id, letter.batch_webhook_id}
            if is_named and (newest is None or letter.dead_lettered_at_ms >= newest.letter.dead_lettered_at_ms):
                newest = Found(place=place, offset=offset, letter=letter, is_redriven=redriven.has(letter))

    reader.read(extents, take)
    if newest is None:
        raise errors.SettingsError(
            f"there is no dead letter {name} in Kafka, so nothing is shown: it may have expired, or the name is wrong. "
            "`fanout dead-letters list` lists the newest; --limit shows more"
        )
    return newest


class _Writable(Protocol):
    def write(self, written: bytes, /) -> object: ...


def show(console: rich.console.Console, found: Found) -> None:
    """Print one dead letter for a person: its fields, the headers of the event's record, its attempts and its payload."""
    document = found.document()
    try:
        headers, payload = found.letter.event().record.headers, found.letter.payload().decode(errors="replace")
    except ValueError as exc:
        headers = ()
        payload = (
            f"the payload or a header cannot be shown ({exc}), so another program wrote this dead letter; --json shows it all"
        )
    for name in ("attempts", "headers", "payload_base64"):
        del document[name]
    for name in ("appended_at", "dead_lettered_at"):
        document[name] = times.shown(document.pop(f"{name}_ms"))
    document |= {f"header {name}": value.decode(errors="replace") for name, value in headers}
    for name, value in document.items():
        if value is not None:
            console.print(f"{name:20}", value)
    table = rich.table.Table("attempt", "started at", "ms", "status", "error class", "detail", "response")
    for attempt in found.letter.attempts:
        texts = (str(attempt.status or ""), attempt.error_class or "", attempt.detail, attempt.response)
        numbers = (str(attempt.attempt), times.shown(attempt.started_at_ms), str(attempt.duration_ms))
        table.add_row(*numbers, *texts)
    if found.letter.attempts:
        commands.show(console, table)
    if found.letter.attempts_omitted:
        console.print(
            f"{found.letter.attempts_omitted} earlier attempts are not in the dead letter; the attempts topic has them until "
            "they expire"
        )
    console.print(payload)


def export(reader: DeadLetterReader, selection: Selection, to: _Writable, limit: int | None = None) -> int:
    """Write selected dead letters to `to`, unchanged and one a line; return their number.

    The dead letters of one partition come in the order of their offsets. With a `limit`, write only the first `limit` that are
    read. Partitions are read in no fixed order, so the first dead letters read need not be the oldest.
    """
    count = 0

    def take(_: Place, __: int, written: bytes) -> None:
        nonlocal count
        if (limit is None or count < limit) and selection.matches(dead_letter_records.decode(written)):
            to.write(written + b"\n")
            count += 1

    reader.read(reader.extents(selection.since_ms), take)
    return count


def redrive(
    config: settings.Settings,
    reader: DeadLetterReader,
    selection: Selection,
    *,
    limit: int | None = None,
    dry_run: bool = False,
    may_repeat: bool = False,
    now_ms: int | None = None,
) -> enqueue.Summary:
    """Enqueue the newest dead letter of each delivery, if it is selected and was not redriven.

    Return how many dead letters were enqueued, and how many were left out because an earlier redrive had enqueued them. With a
    `limit`, enqueue at most `limit` dead letters, the oldest. With `dry_run`, only count. `now_ms` None: the present time.

    Raise SettingsError if there is no attempts or retries topic. Also raise it if notes of earlier redrives may be gone from
    both topics, unless `may_repeat`. Raise KafkaUnavailable or RecordUnreadable if reading or writing fails. If some dead
    letters may be enqueued then, the error says so; the next call leaves these out.
    """
    missing = reader.missing_topic()
    if missing is not None:  # without the attempts topic, redriven dead letters would be redriven again
        raise errors.SettingsError(
            f"there is no topic {missing} on {config.kafka.bootstrap_servers} that this login may describe, so nothing was "
            "redriven: the job has not created it, or it has another name. Start the job, correct the topics in the area "
            "delivery, or grant Describe on the topic to the login"
        )
    if not may_repeat and not reader.has_all_notes(selection.since_ms):
        raise errors.SettingsError(
            f"the topics {config.delivery.attempts_topic} and {config.delivery.retries_topic} have lost old records, and may "
            "have lost notes of earlier redrives. So nothing was redriven: dead letters could be sent once more that were "
            "redriven before. Select newer dead letters with --since. If that is refused too, permit the repetition with "
            "--may-repeat"
        )
    redriven = reader.redriven(selection.since_ms)
    plan = redrive_plan.Plan(selection, redriven, fault_of=redrive_plan.fault_of)
    extents = reader.extents(selection.since_ms)
    reader.read(extents, lambda place, offset, written: plan.add(dead_letter_records.decode(written), (place, offset)))
    chosen = plan.chosen(limit)
    for at, newest in chosen.items():
        if newest.fault and not isinstance(at, int):
            raise topic_scanner.unreadable(f"{at[0].topic}:{at[0].partition}:{at[1]}", newest.fault)
    now_ms = round(time.time() * 1000) if now_ms is None else now_ms
    enqueuer = enqueue.Enqueuer(config, chosen.values(), now_ms=now_ms, dry_run=dry_run)

    def take(place: Place, offset: int, written: bytes) -> None:
        if (place, offset) in chosen:
            enqueuer.add(dead_letter_records.decode(written))

    try:
        if chosen:
            reader.read(extents, take)
        enqueuer.finish()
    except errors.KafkaUnavailable as exc:
        if dry_run:
            raise
        raise errors.KafkaUnavailable(
            f"{exc}. Some dead letters may already be redriven; another redrive leaves these out"
        ) from exc
    enqueuer.summary.redriven_before = plan.redriven_before
    return enqueuer.summary


@contextlib.contextmanager
def reading(config: settings.Settings, console: rich.console.Console | None = None) -> Iterator[DeadLetterReader]:
    """Yield a reader, and close it afterwards.

    Raise SettingsError if there is no dead-letter topic that this login may describe, and KafkaUnavailable if Kafka does not
    answer.
    """
    reader = DeadLetterReader(config, console)
    try:
        reader.require_topic()
        yield reader
    finally:
        reader.close()


def _earlier(since_ms: int | None) -> int | None:
    return None if since_ms is None else since_ms - MARGIN_MS
