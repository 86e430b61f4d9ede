"""`fanout archive`: write what was given up, and what was attempted, to Postgres, and hand over what is to be redriven.

Runs as a process of its own, so that delivery never waits for it. Whatever fails, it begins anew from what is committed in
Postgres: a record is archived once. One process is enough; two at once are safe, and do the same work twice.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import threading
import time
from collections.abc import Sequence

import confluent_kafka

from delivery import errors
from delivery.config import settings, topic_pattern
from delivery.observability import health, http_endpoints, metrics
from delivery.observability.health import Phase
from delivery.stages.kafka import lag, topics
from delivery.webhooks.results import dead_letter_records, log_records
from delivery.webhooks.results.log_records import LogRecord
from delivery.webhooks.state import chunking
from fanout.archiver import notify_step, redrive_step
from fanout.archiver.replay_step import Replayer
from fanout.archiver.source import Source, place_of
from fanout.kafka import publishing
from fanout.kafka.places import Place
from subscriptions_db.archive.ingest import archived_rows, partitions, redrive_notes, signals, writer
from subscriptions_db.archive.ingest.archived_rows import ArchivedRecord
from subscriptions_db.archive.notifications import outbox
from subscriptions_db.archive.notifications.endpoint_health import Policy
from subscriptions_db.postgres import connect, migrate
from subscriptions_db.replays import progress

log = logging.getLogger(__name__)

NAME = "archive"
WAIT_S = 0.5
"""For records, and so until what was asked for meanwhile is handed over."""
MAX_BYTES = 4 * 1024 * 1024
"""Of the records that are written together."""
KEEP_DAYS_S = 60.0
TELL_S = 60.0
"""How often a line says what was archived, where something was."""
LOOK_S = 1.0
"""How often to look which endpoints are disabled."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
AWAY = (errors.KafkaUnavailable, errors.RegistryUnavailable, errors.RegistryOutdated)


def pause_s(failures: int) -> float:
    """Return how long to wait after so many failures in a row: doubling, up to a bound."""
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures - 1, 30))


def run(config: settings.Settings, *, stop: threading.Event, once: bool = False) -> None:
    """Archive until `stop` is set, or with `once` until all that is in Kafka now is archived; then what is away is raised."""
    archiver = Archiver(config, stop)
    http_endpoints.serve(config.metrics, {NAME: archiver.watch})
    lag.watch(config, NAME, archiver.watch, stop)
    while not stop.is_set():
        try:
            archiver.follow(once=once)
        except AWAY as exc:
            if once:
                raise
            archiver.failed(exc)
        else:
            if once:
                break
    archiver.stopped()


class Archiver:
    """Follow the topics into the archive, and count what happens."""

    def __init__(self, config: settings.Settings, stop: threading.Event) -> None:
        self.watch = health.Watch(hold=self._hold_reason, stop=stop)
        self._config = config
        self._stop = stop
        self._kept = writer.Retention(config.archive.retention_days, config.archive.attempts_retention_days)
        self._policy = policy_of(config)
        self._hold: str | None = None
        self._failures = 0
        self._hand_over_at = 0.0
        self._replayer = Replayer(config)
        self._source: Source | None = None
        self._done = _Done()

    def follow(self, *, once: bool) -> None:
        """Archive until it is time to stop, or to begin anew because there are new partitions; raise what is away."""
        names = [self._config.delivery.dead_letter_topic]
        if self._config.archive.attempts:
            names.append(self._config.delivery.attempts_topic)
        with connect.connect(self._config.database, application_name="fanout archive") as connection:
            migrate.require_current(connection)
            topics.ensure_all(self._config)
            if self._policy is not None:
                topics.ensure(self._config.kafka, [self._config.operations.topic], publishing.EVENT_PARTITIONS)
            with contextlib.closing(Source(self._config.kafka, names)) as self._source, contextlib.closing(self._replayer):
                self._begin(connection, self._source)
                log.info("archiving %s into Postgres", ", ".join(names))
                self.watch.entered(Phase.RUNNING)
                self._go_on(connection, self._source, once=once)

    def stopped(self) -> None:
        """Say so, as the last line."""
        log.info("stopped in order: all that was read is archived, %s", self._done.in_all())

    def failed(self, exc: errors.FanoutError) -> None:
        """Say that something is away, and wait a while."""
        self._failures += 1
        self._hold = str(exc)
        log.warning("the archive waits %.1f s: %s", pause_s(self._failures), exc)
        self._stop.wait(pause_s(self._failures))

    def _begin(self, connection: connect.Connection, source: Source) -> None:
        archived_until = {Place(*place): offset for place, offset in writer.offsets(connection).items()}
        for place, start in source.begin(archived_until).items():
            if start.is_anew:
                log.error("%s:%d was made anew: it is archived from its beginning", *place)
                writer.restart_partition(connection, place, archived_until[place])
            if start.lost:
                log.error("%d records of %s:%d are lost: Kafka dropped them before they were archived", start.lost, *place)
                metrics.ARCHIVE_LEFT_OUT.labels("lost").inc(start.lost)
        self.watch.reached(source.positions)

    def _go_on(self, connection: connect.Connection, source: Source, *, once: bool) -> None:
        keep_days_at = look_at = tell_at = 0.0
        while not self._stop.is_set():
            if time.monotonic() >= keep_days_at:
                self._keep_days(connection)
                keep_days_at = time.monotonic() + KEEP_DAYS_S
            if self._policy is not None and time.monotonic() >= look_at:
                outbox.record_due(connection, self._policy, now=_now())
                look_at = time.monotonic() + LOOK_S
            messages = source.take(WAIT_S)
            for together in chunking.of(messages, lambda message: len(message.value() or b""), MAX_BYTES):
                self._write(connection, source, together)
            handed_over = self._hand_over(connection, once=once)
            self._hold, self._failures = None, 0
            if time.monotonic() >= tell_at and (said := self._done.since_last()):
                log.info("archived %s", said)
                tell_at = time.monotonic() + TELL_S
            if (once and source.has_all() and not handed_over) or (not once and source.has_new_partitions()):
                return

    def _write(self, connection: connect.Connection, source: Source, messages: Sequence[confluent_kafka.Message]) -> None:
        now = _now()
        taken = [self._taken(message, now) for message in messages]
        written = writer.write(connection, taken, self._kept, now=now, policy=self._policy)
        for message in messages:
            source.reached(message)
        self.watch.reached(source.positions)
        for topic, at_ms in {str(message.topic()): message.timestamp()[1] for message in messages}.items():
            metrics.ARCHIVE_REACHED.labels(topic).set(at_ms / 1000)
        metrics.ARCHIVED.labels("dead_letters").inc(written.letters)
        metrics.ARCHIVED.labels("attempts").inc(written.attempts)
        metrics.ARCHIVE_LEFT_OUT.labels("expired").inc(written.expired)
        metrics.ARCHIVE_LEFT_OUT.labels("refused").inc(written.refused)
        self._done.count(written)

    def _hand_over(self, connection: connect.Connection, *, once: bool) -> int:
        """Hand over a turn of operational events, letters and replays. While Kafka refuses them, the archive goes on."""
        if time.monotonic() < self._hand_over_at:
            return 0
        told = redriven = replayed = 0
        try:
            if self._policy is not None:
                told = notify_step.publish(self._config, connection)
            redriven = redrive_step.redrive(self._config, connection, now=_now())
            replayed = self._replayer.turn(connection)
        except errors.KafkaUnavailable as exc:
            if once:
                raise
            log.warning("operational events, redrives and replays wait %.0f s: %s", LONGEST_PAUSE_S, exc)
            self._hand_over_at = time.monotonic() + LONGEST_PAUSE_S
        metrics.ARCHIVE_TOLD.inc(told)
        metrics.ARCHIVE_REDRIVEN.inc(redriven)
        return told + redriven + replayed

    def _taken(self, message: confluent_kafka.Message, now: dt.datetime) -> ArchivedRecord:
        """Return what a record holds. One that the job cannot have written is named, counted and passed over."""
        (topic, partition), offset, value = place_of(message), message.offset() or 0, message.value() or b""
        at = _written_at(message, now)
        try:
            if topic == self._config.delivery.dead_letter_topic:
                letter, document = dead_letter_records.decode_with_document(value)
                row = archived_rows.dead_letter_row(letter, document)
                return ArchivedRecord(
                    topic=topic,
                    partition=partition,
                    offset=offset,
                    letter=row,
                    replay_counts=archived_rows.replay_counts_of_dead_letter(letter),
                    signals=signals.dead_letter_signals(row, at),
                )
            record = log_records.decode(value)
            if isinstance(record, LogRecord):
                return ArchivedRecord(
                    topic=topic,
                    partition=partition,
                    offset=offset,
                    attempts=archived_rows.attempt_rows(record, at),
                    redriven=archived_rows.redriven_rows(record),
                    replay_counts=archived_rows.replay_counts(record),
                    signals=signals.log_signals(record, at),
                )
        except (errors.RecordUnreadable, ValueError) as exc:  # a MsgspecError is a ValueError
            log.warning("%s:%d:%d is left out of the archive: %s", topic, partition, offset, exc)
            metrics.ARCHIVE_LEFT_OUT.labels("unreadable").inc()
        return ArchivedRecord(topic=topic, partition=partition, offset=offset)

    def _keep_days(self, connection: connect.Connection) -> None:
        today = partitions.day_of(_now())
        kinds: tuple[tuple[partitions.ArchiveTable, int], ...] = (
            ("dead_letters", self._kept.letters),
            ("attempts", self._kept.attempts),
        )
        for kind, retention_days in kinds:
            for day in partitions.coming(today):
                partitions.create(connection, kind, day)
            for name in partitions.drop(connection, kind, partitions.oldest(today, retention_days)):
                log.info("%s is dropped: it was kept for more than %d days", name, retention_days)
        if self._policy is not None:
            outbox.delete_orphans(connection)
        redrive_notes.forget(connection, partitions.oldest(today, self._kept.letters))
        progress.forget(connection, before=_now() - dt.timedelta(days=self._kept.letters))

    def _hold_reason(self) -> str | None:
        if self._source is not None and self._source.is_away:
            return "Kafka does not answer"
        return self._hold


class _Done:
    """What was archived, for the log."""

    def __init__(self) -> None:
        self._letters = self._attempts = self._told_letters = self._told_attempts = 0

    def count(self, written: writer.Written) -> None:
        """Add what was written."""
        self._letters += written.letters
        self._attempts += written.attempts

    def since_last(self) -> str:
        """Return what came since this was asked before; empty when nothing did."""
        letters, attempts = self._letters - self._told_letters, self._attempts - self._told_attempts
        self._told_letters, self._told_attempts = self._letters, self._attempts
        return _counted(letters, attempts) if letters or attempts else ""

    def in_all(self) -> str:
        """Return what was archived since the start."""
        return _counted(self._letters, self._attempts)


def _counted(letters: int, attempts: int) -> str:
    return f"dead letters: {letters}, attempts: {attempts}"


def policy_of(config: settings.Settings) -> Policy | None:
    """Return by what customers are told of their endpoints; None when they are not."""
    asked = config.operations
    if not asked.topic:
        return None
    if not topic_pattern.matches(config.source.topic_pattern, asked.topic):
        raise errors.SettingsError(
            f"setting operations.topic: {asked.topic} does not match source.topic_pattern, so nobody would be given its events"
        )
    return Policy(asked.failing_after_s, asked.backlog_events, asked.quiet_s)


def _written_at(message: confluent_kafka.Message, now: dt.datetime) -> dt.datetime:
    """Return when a record was written, no later than `now`: a clock that is ahead would have us be quiet until then."""
    kind, epoch_ms = message.timestamp()
    if kind == confluent_kafka.TIMESTAMP_NOT_AVAILABLE:
        return now
    try:
        return min(now, dt.datetime.fromtimestamp(epoch_ms / 1000, dt.UTC))
    except (ValueError, OverflowError, OSError):  # beyond all calendars: no clock of the job's
        return now


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
