"""`fanout reconcile`: read the topics, account for every delivery, and show the account.

Runs in `fanout` commands and the load tests. Changes nothing in Kafka, and the job may run meanwhile. Lanes write offset
receipts to the attempts topic. An offset receipt says which offsets a lane has handled, and how many deliveries were due. A
receipt is judged by comparing its counts with the outcomes at its offsets. Receipts of the last seconds are judged only if the
job is stopped. The attempts topic is read first, so that the topics that are read later have every record to which the attempts
topic refers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import confluent_kafka
import rich.console
import rich.markup
import rich.table

from delivery import errors
from delivery.config import plan_builder, settings
from delivery.stages.kafka import record_reader, topics
from delivery.webhooks.events import parsing
from delivery.webhooks.formats import decoder
from delivery.webhooks.results import dead_letter_records, log_records, rejected_records
from delivery.webhooks.retries import retry_records
from fanout.kafka import topic_scanner
from fanout.kafka.places import Place
from fanout.reconcile import accounting, evidence
from fanout.reconcile.accounting import Account, Terms
from fanout.redrive import redrive_plan
from fanout.terminal import commands

MARGIN_MS = 600_000
"""Ten minutes, in milliseconds. `--since` selects offset receipts by their time. The results that a receipt counts were written
before the receipt. So the reading of the topics of results begins this long before `--since`."""
MAX_SHOWN = 30
"""Maximum findings that are printed, and maximum rows of the table of event types and endpoints."""


class Proof(NamedTuple):
    """The account of a reconciliation, and remarks (`notes`) about what the account cannot cover."""

    account: Account
    notes: list[str]

    @property
    def exit_code(self) -> int:
        """Return 0: everything adds up; 1: there are findings; 2: the topics have no record of any lane to judge."""
        if self.account.findings.by_kind:
            return 1
        return 0 if self.account.lanes else 2

    def document(self) -> dict[str, Any]:
        """Return the account and the remarks as a dictionary for JSON output."""
        return self.account.document() | {"notes": self.notes}


def reconcile(
    config: settings.Settings,
    *,
    since_ms: int | None = None,
    max_wait_s: float = 86_400.0,
    settle_s: float = 10.0,
    console: rich.console.Console | None = None,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> Proof:
    """Read the event topics and the topics that the job writes, and return the account of the lanes.

    Receipts written before `since_ms`, in milliseconds since the epoch, are not judged. None: no receipt is too old. Receipts
    written less than `settle_s` seconds before the call, or later, are not judged either. The call takes at least `settle_s`
    seconds. `settle_s` 0: no receipt is too new, because the caller knows that the job is stopped. `max_wait_s` is the longest
    `max_wait_s` of all endpoints: a longer wait for a batch is a finding.

    Raise SettingsError if the attempts, dead-letter, rejected or retries topic is missing, or this login may not describe it.
    Raise KafkaUnavailable, SchemaRegistryUnavailable or RecordUnreadable if a topic cannot be read.
    """
    with contextlib.closing(topic_scanner.Scanner(config.kafka, console)) as scanner:
        reading = _Reading(config, scanner, since_ms)
        began = clock()
        attempts = reading.attempts()
        wait_s = max(0.0, began + settle_s - clock())
        if wait_s and console is not None and console.is_terminal:
            console.print(
                f"records of the last {settle_s:g} s are not judged; waiting {wait_s:.0f} s for what belongs to older ones …"
            )
        sleep(wait_s)
        known = reading.others()
        terms = Terms(
            now_ms=round(clock() * 1000),
            since_ms=since_ms,
            until_ms=round((began - settle_s) * 1000) if settle_s else 2**62,
            is_stopped=not settle_s,
            max_wait_s=max_wait_s,
            from_first=attempts and since_ms is None and config.source.starting_offsets == "earliest",
            **known,
        )
    account = accounting.account(reading.evidence, terms)
    return Proof(account, list(_notes(account, terms, config)))


class _Reading:
    """Read topics into the evidence."""

    def __init__(self, config: settings.Settings, scanner: topic_scanner.Scanner, since_ms: int | None) -> None:
        self.evidence = evidence.Evidence()
        self._config, self._scanner, self._since_ms = config, scanner, since_ms
        self._logged_since_ms = None if since_ms is None else since_ms - MARGIN_MS
        self._layout = plan_builder.layout_of(config)
        self._formats = decoder.decoder_of(plan_builder.formats_of(config.schema_registry), self._layout)
        known = scanner.names()
        missing = [name for name in topics.of_results(config.delivery) if name not in known]
        if missing:  # without its records, healthy deliveries would look lost
            raise errors.SettingsError(
                f"there is no topic {missing[0]} on {config.kafka.bootstrap_servers} that this login may describe, so nothing "
                "was reconciled: the job has not created it, or it has another name. Start the job, correct the topics in the "
                "area delivery, or grant Describe on the topic to the login"
            )
        self._event_topics = topic_scanner.event_topics(config, known)

    def attempts(self) -> bool:
        """Read the attempts topic from MARGIN_MS before the constructor's `since_ms` on; with None, from its beginning.

        Return False if some of the records to read may have expired.
        """
        extents = self._scanner.extents([self._config.delivery.attempts_topic], since_ms=self._logged_since_ms)

        def add(message: confluent_kafka.Message) -> None:
            self.evidence.add_log_record(log_records.decode(message.value() or b""), message.timestamp()[1])

        self._scanner.read(extents, "the attempts topic", add)
        return all(extent.is_whole for extent in extents)

    def others(self) -> dict[str, bool]:
        """Read retry entries, rejected records, dead letters and events into the evidence.

        Return `retries_complete`, `rejected_complete` and `letters_complete` of Terms, by name. Each is True if its topic
        certainly still has all records since MARGIN_MS before the constructor's `since_ms`. With `since_ms` None: all records
        that were ever written.
        """
        delivery = self._config.delivery
        adders: dict[str, tuple[str, topic_scanner.Consume]] = {
            "retries_complete": (delivery.retries_topic, self._add_retries),
            "rejected_complete": (delivery.rejected_topic, self._add_rejected),
            "letters_complete": (delivery.dead_letter_topic, self._add_dead_letter),
        }
        known = {}
        for term, (name, add) in adders.items():
            extents = self._scanner.extents([name], since_ms=self._logged_since_ms)
            self._scanner.read(extents, name, add)
            known[term] = all(extent.is_whole for extent in extents)
        events = [self._with_runs(extent) for extent in self._scanner.extents(self._event_topics, since_ms=self._since_ms)]
        for extent in events:
            self.evidence.events[extent.place] = evidence.Events(extent.first)
        self._scanner.read(events, "events", self._add_event)
        return known

    def _with_runs(self, extent: topic_scanner.Extent) -> topic_scanner.Extent:
        """Return the extent, extended back to the first offset of all judged receipts, but not before Kafka's first offset."""
        first = self.evidence.first_offset(extent.place, self._since_ms or 0)
        return extent if first is None else dataclasses.replace(extent, first=max(extent.low, min(first, extent.first)))

    def _add_retries(self, message: confluent_kafka.Message) -> None:
        for retry_message in retry_records.messages(message.value()):
            self.evidence.add_retry_message(retry_message)
        for name, value in record_reader.headers_of(message):
            if name == redrive_plan.NOTE:
                self.evidence.add_log_record(log_records.decode(value), message.timestamp()[1])

    def _add_rejected(self, message: confluent_kafka.Message) -> None:
        self.evidence.add_rejected(rejected_records.decode(message.value() or b""))

    def _add_dead_letter(self, message: confluent_kafka.Message) -> None:
        self.evidence.add_dead_letter(dead_letter_records.decode(message.value() or b""))

    def _add_event(self, message: confluent_kafka.Message) -> None:
        record = record_reader.record_of(message)
        try:
            event = parsing.parse(record, self._layout) if self._formats is None else self._formats.event_now(record)
            event_type = event.event_type
        except errors.EventRejected:
            event_type = None
        self.evidence.add_event(Place(record.topic, record.partition), record.offset, event_type)


def _notes(account: Account, terms: Terms, config: settings.Settings) -> list[str]:
    """Return remarks about what the account cannot cover."""
    delivery = config.delivery
    known = {
        delivery.retries_topic: terms.retries_complete,
        delivery.dead_letter_topic: terms.letters_complete,
        delivery.rejected_topic: terms.rejected_complete,
    }
    return [
        *(
            f"the topics have no record of lane {name}, so nothing of it was judged: it has not run in this time, or its "
            "records have expired. If it runs, choose an earlier --since, or lengthen the retention of "
            f"{delivery.attempts_topic}"
            for name in accounting.LANES
            if name not in account.lanes
        ),
        *(
            f"the oldest records of topic {name} have expired: deliveries that only this topic names cannot be judged. "
            "Reconcile more often, or lengthen the topic's retention"
            for name, is_known in known.items()
            if not is_known
        ),
    ]


def show(console: rich.console.Console, proof: Proof) -> None:
    """Print the account for an operator, with the remarks and the first MAX_SHOWN findings."""
    account = proof.account
    _show_lanes(console, account)
    _show_groups(console, account)
    for note in proof.notes:
        console.print(f"note: {note}")
    for finding in account.findings.kept[:MAX_SHOWN]:
        console.print(f"[red]{finding.kind.value}[/] {rich.markup.escape(finding.text())}", markup=True)
    total = account.findings.by_kind.total()
    if total > MAX_SHOWN:
        console.print(f"… and {total - MAX_SHOWN} more findings; --json prints {len(account.findings.kept)} of them")
    verdicts = (
        "[green]Everything adds up.[/]",
        f"[red]{total} findings: not everything adds up.[/]",
        "[yellow]Nothing was checked: the topics have no record of any lane in this time.[/]",
    )
    console.print(verdicts[proof.exit_code], markup=True)


def _show_lanes(console: rich.console.Console, account: Account) -> None:
    table = rich.table.Table("", *account.lanes, title="Every due (event, subscription), from the topics", title_justify="left")
    documents = [
        {"records read": lane.records, "rejected": lane.rejected} | lane.counts.document() for lane in account.lanes.values()
    ]
    reasons = sorted({reason for document in documents for reason in document["skipped"]})
    for name in ("records read", "rejected", "due", "delivered", "pending", "dead_lettered"):
        table.add_row(name.replace("_", "-"), *(str(document[name]) for document in documents))
    for reason in reasons:
        table.add_row(f"skipped: {reason}", *(str(document["skipped"].get(reason, 0)) for document in documents))
    for name in ("lost", "repeated", "replayed"):
        table.add_row(name, *(str(document[name]) for document in documents))
    table.add_row("records not handled yet, or newer than --settle", *(str(lane.behind) for lane in account.lanes.values()))
    commands.show(console, table)


def _show_groups(console: rich.console.Console, account: Account) -> None:
    names = ("lane", "event type", "endpoint", "due", "delivered", "pending", "dead-lettered", "skipped", "lost")
    table = rich.table.Table(*names)
    largest = sorted(account.groups.items(), key=lambda item: (-item[1].lost, -item[1].due))
    for group, counts in largest[:MAX_SHOWN]:
        numbers = (counts.due, counts.delivered, counts.pending, counts.dead_lettered, counts.skipped.total(), counts.lost)
        table.add_row(*group, *map(str, numbers))
    if largest:
        commands.show(console, table)
    if len(largest) > MAX_SHOWN:
        console.print(f"… and {len(largest) - MAX_SHOWN} more event types and endpoints; --json prints all of them")
