"""`fanout archive`: copy dead letters and attempts to Postgres, run redrives and replays, and publish operational events.

Runs as its own process, so that delivery never waits for it. The process begins at the offsets that are committed in Postgres:
at each start, and after each pause for a server that was away. So each record is archived once. One process is enough. Two
processes at once are safe: both read every record, and each record is still archived once.
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
from delivery.observability.health import QueryPhase
from delivery.stages.kafka import lag, topics
from delivery.webhooks.results import dead_letter_records, log_records
from delivery.webhooks.results.log_records import LogRecord
from delivery.webhooks.state import chunking
from fanout.archiver import notify_step, quota_step, topic_reader
from fanout.archiver.redrive_step import Redriver
from fanout.archiver.replay_step import Replayer
from fanout.archiver.topic_reader import Source, place_of
from fanout.kafka.places import Place
from subscriptions_db.archive.ingest import archived_rows, hourly_statistics, partitions, redrive_notes, signals, writer
from subscriptions_db.archive.ingest.archived_rows import ArchivedRecord
from subscriptions_db.archive.notifications import key_expiry, outbox
from subscriptions_db.archive.notifications.endpoint_health import Policy
from subscriptions_db.postgres import connect, migrate, row_security, stored_answers
from subscriptions_db.replays import progress

log = logging.getLogger(__name__)

NAME = "archive"
"""The name of this process in probes and metrics."""
WAIT_S = 0.5
"""Seconds to wait for records. After each wait, the records are written, redrives and replays run, and operational events are
published."""
MAX_BYTES = 4 * 1024 * 1024
"""Maximum bytes of records that are written to Postgres in one transaction. A larger record has a transaction of its own."""
MAINTENANCE_S = 60.0
"""Seconds between two maintenance runs. A run creates and drops the daily partitions of tables, and deletes other rows past
their retention, among them the API's stored answers (stored_answers.py). The run checks the quotas if a check is
due (quota_step.py). With `operations.topic` the run stores an operational event about each API key that expires soon."""
REPORT_S = 60.0
"""Minimum seconds between two log lines about archived records. Nothing is logged if none was archived."""
DISABLED_CHECK_S = 1.0
"""Seconds between two checks for endpoints that were disabled, or whose dead letters are due to be reported. The customer of
each found endpoint gets an operational event. Without `operations.topic` nothing is checked."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
"""Seconds to pause after a first failure, and the longest pause. The pause doubles with each further failure in a row."""
UNAVAILABLE = (errors.KafkaUnavailable, errors.RegistryUnavailable, errors.RegistryOutdated)
"""Errors after which the process pauses, and then begins again at the archived offsets. With `once`, one of these errors ends
the process."""


def pause_s(failures: int) -> float:
    """Return the seconds to pause after `failures` (1 or more) failures in a row. The pause doubles up to LONGEST_PAUSE_S."""
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures - 1, 30))


def run(config: settings.Settings, *, stop: threading.Event, once: bool = False) -> None:
    """Archive, run redrives and replays, and publish operational events, until `stop` is set.

    With `once`, return when the records now in Kafka are archived, and no redrive, replay or operational event can advance
    now. With `once`, also raise the error of an unavailable server, in place of a pause. Raise SettingsError if a setting
    is wrong, or if the retries topic refuses records as large as a postponed batch.
    """
    archiver = Archiver(config, stop)
    http_endpoints.serve(config.metrics, {NAME: archiver.watch})
    lag.watch(config, NAME, archiver.watch, stop)
    archiver.run(once=once)
    archiver.stopped()


class Archiver:
    """Copy the topics to the archive. Between two writes, run redrives and replays, and publish operational events."""

    def __init__(
        self,
        config: settings.Settings,
        stop: threading.Event,
        *,
        partition_check_s: float = topic_reader.PARTITION_CHECK_S,
    ) -> None:
        """`partition_check_s` are the seconds between two checks for new partitions."""
        self.watch = health.Watch(pause_reason=self._current_pause_reason, stop=stop)
        self._config = config
        self._stop = stop
        self._partition_check_s = partition_check_s
        self._kept = writer.Retention(
            config.archive.retention_days, config.archive.attempts_retention_days, config.archive.statistics_retention_days
        )
        self._policy = policy_of(config)
        self._quotas = quota_step.QuotaLooks(quota_step.defaults_of(config), self._policy)
        self._pause_reason: str | None = None
        self._failures = 0
        self._notifier = None if self._policy is None else notify_step.Notifier(config)
        self._redriver = Redriver(config)
        self._replayer = Replayer(config)
        self._source: Source | None = None
        self._totals = _Totals()

    def run(self, *, once: bool) -> None:
        """Follow the topics until `stop` is set, and pause while a server is unavailable. `once`: see the function `run`."""
        while not self._stop.is_set():
            try:
                self.follow(once=once)
            except UNAVAILABLE as exc:
                if once:
                    raise
                self.failed(exc)
            else:
                if once:
                    break

    def follow(self, *, once: bool) -> None:
        """Archive until `stop` is set, or until a topic has new partitions, which the next call reads too.

        With `once`, return when the records now in Kafka are archived, and no redrive, replay or operational event can advance
        now. With `once`, also raise SchemaRegistryUnavailable if a replay needs a schema that cannot be read now. Raise one of
        UNAVAILABLE if Kafka or Postgres does not answer, or if Postgres lacks a migration of this version. Raise SettingsError
        if the retries topic refuses large records.
        """
        names = [self._config.delivery.dead_letter_topic]
        if self._config.archive.attempts:
            names.append(self._config.delivery.attempts_topic)
        with connect.connect(self._config.database, application_name="fanout archive") as connection:
            migrate.require_current(connection)
            topics.ensure_all(self._config)
            source = Source(self._config.kafka, names, partition_check_s=self._partition_check_s)
            with contextlib.closing(source) as self._source, contextlib.closing(self._replayer):
                self._begin(connection, self._source)
                log.info("archiving %s into Postgres", ", ".join(names))
                self.watch.enter(QueryPhase.RUNNING)
                self._loop(connection, self._source, once=once)

    def stopped(self) -> None:
        """Log the graceful end of the process and the counts since its start. This is the last line of the log."""
        log.info(
            "stopped gracefully. Archived since the start: %s. The next start continues after these",
            self._totals.in_all(),
        )

    def failed(self, exc: errors.FanoutError) -> None:
        """Log that a server is unavailable, and pause. With each failure in a row, the pause doubles, up to LONGEST_PAUSE_S.

        `stop` ends the pause.
        """
        self._failures += 1
        self._pause_reason = str(exc)
        log.warning(
            "%s. So the archive pauses for %.1f s, then tries again. Until then redrives, replays and operational events wait. "
            "Deliveries do not depend on the archive; if Kafka does not answer, look at the job too",
            exc, pause_s(self._failures),
        )  # fmt: skip
        self._stop.wait(pause_s(self._failures))

    def _begin(self, connection: connect.Connection, source: Source) -> None:
        archived_until = {Place(*place): offset for place, offset in writer.offsets(connection).items()}
        for place, start in source.begin(archived_until).items():
            if start.is_recreated:
                log.error(
                    "%s:%d ends before the offset up to which it was archived. Its topic was deleted and created again, or its "
                    "newest records were lost, or kafka.bootstrap_servers names another cluster. The partition is archived "
                    "from its first record, and the rows that are archived already stay. If nobody meant this, find out who "
                    "deleted the topic, which broker lost records, or who changed the setting", *place,
                )  # fmt: skip
                writer.restart_partition(connection, place, archived_until[place], start.offset)
            if start.lost:
                log.error(
                    "%d records of %s:%d are missing from the archive: Kafka deleted them before they were archived. Archiving "
                    "continues after them. Lengthen the topic's retention, and keep `fanout archive` running",
                    start.lost,
                    *place,
                )
                metrics.ARCHIVE_LEFT_OUT.labels("lost").inc(start.lost)
                writer.skip_lost(connection, place, archived_until[place], start.offset)
        self.watch.reach(source.positions)

    def _loop(self, connection: connect.Connection, source: Source, *, once: bool) -> None:
        maintenance_at = disabled_check_at = report_at = 0.0
        while not self._stop.is_set():
            if time.monotonic() >= maintenance_at:
                self._maintain(connection)
                maintenance_at = time.monotonic() + MAINTENANCE_S
            if self._policy is not None and time.monotonic() >= disabled_check_at:
                outbox.record_due(connection, self._policy, now=_now())
                disabled_check_at = time.monotonic() + DISABLED_CHECK_S
            messages = source.poll(WAIT_S)
            for chunk in chunking.chunks(messages, lambda message: len(message.value() or b""), MAX_BYTES):
                self._write(connection, source, chunk)
            is_behind = source.may_have_more and not (once and source.has_all())
            progressed = self._run_steps(connection, is_behind=is_behind, once=once)
            self._pause_reason, self._failures = None, 0
            if time.monotonic() >= report_at and (counts := self._totals.since_last()):
                log.info("archived %s", counts)
                report_at = time.monotonic() + REPORT_S
            if (once and source.has_all() and not progressed) or (not once and source.has_new_partitions()):
                return

    def _write(self, connection: connect.Connection, source: Source, messages: Sequence[confluent_kafka.Message]) -> None:
        now = _now()
        taken = [self._archived_record(message, now) for message in messages]
        written = writer.write(connection, taken, self._kept, now=now, policy=self._policy)
        for message in messages:
            source.reached(message)
        self.watch.reach(source.positions)
        for topic, at_ms in {str(message.topic()): message.timestamp()[1] for message in messages}.items():
            metrics.ARCHIVE_REACHED.labels(topic).set(at_ms / 1000)
        metrics.ARCHIVED.labels("dead_letters").inc(written.letters)
        metrics.ARCHIVED.labels("attempts").inc(written.attempts)
        metrics.ARCHIVE_LEFT_OUT.labels("expired").inc(written.expired)
        metrics.ARCHIVE_LEFT_OUT.labels("refused").inc(written.refused)
        self._totals.count(written)

    def _run_steps(self, connection: connect.Connection, *, is_behind: bool, once: bool) -> int:
        """Publish a page of operational events, enqueue a page of dead letters to redrive, and run replays for about a second.

        Return the sum of the events, dead letters and steps of replays. If Kafka fails in one of the three parts, only this
        part pauses. If the schema registry fails, the replay pauses. Archiving continues. With `once`, raise the error instead.
        Without `operations.topic`, no operational event is published. `is_behind`: more records wait to be archived, so
        replays take at most half of the time.
        """
        notified = 0 if self._notifier is None else self._notifier.step(connection, once=once)
        metrics.ARCHIVE_NOTIFICATIONS.inc(notified)
        redriven = self._redriver.step(connection, now=_now(), once=once)
        return notified + redriven + self._replayer.step(connection, is_behind=is_behind, once=once)

    def _archived_record(self, message: confluent_kafka.Message, now: dt.datetime) -> ArchivedRecord:
        """Return the rows of the archive for a record.

        A record that this version cannot read has no rows, and is logged and counted. In the attempts topic, the receipts of
        handled offsets and records of an unknown `kind` have no rows either. These records are neither logged nor counted.
        """
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
                    statistics=hourly_statistics.of_dead_letter(row),
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
                    statistics=hourly_statistics.of_log(record, at) if self._kept.statistics else {},
                )
        except (errors.RecordUnreadable, ArithmeticError, ValueError) as exc:  # a DecodeError of msgspec is a ValueError
            log.warning(
                "record %s:%d:%d is left out of the archive, because this version of `fanout archive` cannot read it: %s. "
                "Archiving continues after it, and its topic keeps the record. If a newer job wrote it, update `fanout "
                "archive`; else find the program that writes to this topic",
                topic,
                partition,
                offset,
                exc,
            )
            metrics.ARCHIVE_LEFT_OUT.labels("unreadable").inc()
        return ArchivedRecord(topic=topic, partition=partition, offset=offset)

    def _maintain(self, connection: connect.Connection) -> None:
        row_security.require_all_customers(connection)  # the role may be granted at any time, and some rows are deleted below
        today = partitions.day_of(_now())
        kinds: tuple[tuple[partitions.ArchiveTable, int], ...] = (
            ("dead_letters", self._kept.letters),
            ("attempts", self._kept.attempts),
        )
        for kind, retention_days in kinds:
            for day in partitions.coming(today):
                partitions.create(connection, kind, day)
            for name in partitions.drop(connection, kind, partitions.oldest(today, retention_days)):
                log.info(
                    "table partition %s of the archive is dropped, because its retention of %d days is over",
                    name,
                    retention_days,
                )
        if self._policy is not None:
            outbox.delete_orphans(connection)
            key_expiry.record(connection, self._policy, now=_now())
        self._quotas.run(connection)
        redrive_notes.forget(connection, partitions.oldest(today, self._kept.letters))
        hourly_statistics.delete_old(connection, partitions.oldest(today, self._kept.statistics))
        progress.forget(connection, before=_now() - dt.timedelta(days=self._kept.letters))
        stored_answers.delete_remaining(connection)

    def _current_pause_reason(self) -> str | None:
        if self._source is not None and self._source.is_unavailable:
            return (
                "Kafka does not answer: new records are archived when it answers again. Check the brokers and "
                "kafka.bootstrap_servers"
            )
        return self._pause_reason


class _Totals:
    """Numbers of archived dead letters and attempts since the start, for the log."""

    def __init__(self) -> None:
        self._letters = self._attempts = self._reported_letters = self._reported_attempts = 0

    def count(self, written: writer.Written) -> None:
        """Add the counts of one write."""
        self._letters += written.letters
        self._attempts += written.attempts

    def since_last(self) -> str:
        """Return the counts since the last call as text; an empty text if nothing was archived."""
        letters, attempts = self._letters - self._reported_letters, self._attempts - self._reported_attempts
        self._reported_letters, self._reported_attempts = self._letters, self._attempts
        return _counted(letters, attempts) if letters or attempts else ""

    def in_all(self) -> str:
        """Return the counts since the start as text."""
        return _counted(self._letters, self._attempts)


def _counted(letters: int, attempts: int) -> str:
    return f"dead letters: {letters}, attempts: {attempts}"


def policy_of(config: settings.Settings) -> Policy | None:
    """Return the thresholds for operational events (Policy); None if operations.topic is empty.

    Raise SettingsError if the job would not read operations.topic.
    """
    operations = config.operations
    if not operations.topic:
        return None
    if not topic_pattern.matches(config.source.topic_pattern, operations.topic):
        raise errors.SettingsError(
            f"setting operations.topic: {operations.topic} does not match source.topic_pattern, so the job would not read its "
            "events, and `fanout archive` does not start: change one of the two settings"
        )
    return Policy(
        operations.failing_after_s,
        operations.backlog_events,
        operations.quiet_s,
        key_expiring_days=operations.key_expiring_days,
    )


def _written_at(message: confluent_kafka.Message, now: dt.datetime) -> dt.datetime:
    """Return the time of a record; `now` if the record has no time, a time after `now`, or an impossible time.

    A time in the future would suppress notifications until that time.
    """
    kind, epoch_ms = message.timestamp()
    if kind == confluent_kafka.TIMESTAMP_NOT_AVAILABLE:
        return now
    try:
        return min(now, dt.datetime.fromtimestamp(epoch_ms / 1000, dt.UTC))
    except (ValueError, OverflowError, OSError):  # no calendar time, so not written by the job
        return now


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
