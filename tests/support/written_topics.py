"""Build records with the job's own code, and the account of these records, for tests of `fanout reconcile`."""

import msgspec

from delivery.model import NextAttempt, OutcomeKind, SkipReason
from delivery.model import Outcome as Ended
from delivery.registry_model import DeliveryMode, Revision
from delivery.webhooks.batching import segment
from delivery.webhooks.results import dead_letter_records, log_records, rejected_records, topic_rows
from delivery.webhooks.results.task_results import Results
from delivery.webhooks.retries import retry_messages
from delivery.webhooks.routing import intake
from fanout.kafka.places import Place
from fanout.reconcile import accounting, evidence
from tests.support import builders
from tests.unit.fanout.reconcile.test_ledger import TOPICS, attempt

TOPIC = "events.order.created"
PLACE = Place(TOPIC, 0)
NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
DELIVERED, FAILED = (attempt(),), (attempt(1, "server_error"),)


def event(offset, **fields):
    return builders.event(record=builders.record(offset=offset), **fields)


def outcome(offset, kind=OutcomeKind.DELIVERED, attempts=DELIVERED, subscription="s1", **fields):
    delivery = builders.delivery(event=event(offset), subscription=builders.subscription(subscription))
    return Ended(delivery=delivery, kind=kind, attempts=attempts, **fields)


def dead(offset, attempts=FAILED):
    return outcome(offset, OutcomeKind.DEAD_LETTERED, attempts, reason="server_error")


def skipped(offset, reason=SkipReason.SUBSCRIPTION_PAUSED, **fields):
    return outcome(offset, OutcomeKind.SKIPPED, (), reason=reason, **fields)


def postponed(offset, attempts=FAILED):
    again = NextAttempt(NOW_MS + 5000, 1)
    return outcome(offset, OutcomeKind.POSTPONED, attempts, reason="server_error", next_attempt=again)


def receipt(first, last, *, due, rejected=0, mode=DeliveryMode.DIRECT, records=None):
    return intake.Receipt(
        lane=mode, topic=TOPIC, partition=0, revision=Revision(1), first_offset=first, last_offset=last,
        records=last - first + 1 if records is None else records, rejected=rejected, due=due,
    )  # fmt: skip


def rejection(offset, reason="not_json"):
    return intake.Rejection(record=builders.record(offset=offset, value=b"?"), reason=reason, detail="")


def packed(offset):
    return segment.unpacked(segment.item(event(offset), 0).packed)


def retry_message(postponed, *, now_ms=NOW_MS):
    entry = retry_messages.delivery_entry(postponed, now_ms=now_ms)
    return retry_messages.Postponed("ep1", "c1", [msgspec.structs.replace(entry, replay=postponed.replay)])


class WrittenTopics:
    """The evidence of `fanout reconcile` for records that the job wrote. `without` leaves out the records of these topics."""

    def __init__(self, *, records=10, first=0, no_record=(), no_event=(), event_type="order.created"):
        self.evidence = evidence.Evidence()
        self.evidence.events[PLACE] = evidence.Events(first)
        for offset in range(first, first + records):
            if offset not in no_record:
                self.evidence.add_event(PLACE, offset, None if offset in no_event else event_type)
        self._letters = []

    def write(self, *outcomes, without=(), at_ms=NOW_MS, **results):
        rows = topic_rows.rows(Results(outcomes=list(outcomes), **results), TOPICS, now_ms=at_ms)
        self.write_rows((row for row in rows if row.topic not in without), at_ms)
        for ended in outcomes:
            if ended.kind is OutcomeKind.POSTPONED and "retries" not in without:
                self.evidence.add_retry_message(retry_message(ended))
        return self

    def write_rows(self, rows, at_ms=NOW_MS):
        for row in rows:
            if row.topic == "attempts":
                self.evidence.add_log_record(log_records.decode(row.value), at_ms)
            elif row.topic == "rejected":
                self.evidence.add_rejected(rejected_records.decode(row.value))
            else:
                self._letters.append(dead_letter_records.decode(row.value))

    def account(self, **terms):
        for letter in self._letters:
            self.evidence.add_dead_letter(letter)
        return accounting.account(self.evidence, accounting.Terms(**{"now_ms": NOW_MS, "until_ms": 2**62} | terms))


def kinds(account):
    return {finding.kind.value: (finding.first, finding.last, finding.total) for finding in account.findings.kept}


def all_of(count, make=outcome):
    return [make(offset) for offset in range(count)]
