"""AttemptLog writes a line with fixed keys for a sample of the attempts, and for failed attempts at a bounded rate."""

import io
import logging
import random

import orjson
import pytest

from delivery.model import Attempt, Outcome, OutcomeKind
from delivery.observability import logs
from delivery.webhooks.results import attempt_log
from delivery.webhooks.results.task_results import Results
from tests.support import builders, fakes

KEYS = {
    "webhook_id", "event_id", "event_type", "tenant_id", "customer_id", "endpoint_id", "subscription_id", "topic", "partition",
    "offset", "attempt", "status", "error_class", "detail", "duration_ms", "latency_ms", "outcome",
}  # fmt: skip


def results(count, error_class=None, **fields):
    attempt = Attempt(
        number=1, started_at_ms=1_700_000_000_500, duration_ms=40.04, status=200, error_class=error_class, **fields
    )  # fmt: skip
    return Results(outcomes=[Outcome(delivery=builders.delivery(), kind=OutcomeKind.DELIVERED, attempts=(attempt,))] * count)


def writer(sample, clock=None):
    return attempt_log.AttemptLog(sample, clock=clock or fakes.Clock(), rng=random.Random(1))


@pytest.fixture(autouse=True)
def _at_info(caplog):
    caplog.set_level(logging.INFO)


def test_a_line_has_the_result_and_the_duration_of_an_attempt(caplog):
    writer(1.0).write(results(1))
    [record] = caplog.records
    assert (record.getMessage(), record.levelname) == ("delivery.attempted", "INFO")
    assert (record.attempt, record.status, record.error_class, record.outcome) == (1, 200, None, "delivered")
    assert (record.duration_ms, record.latency_ms) == (40.0, 540.0)  # appended at …000, begun at …500


def test_the_keys_of_a_line_are_fixed_and_disclose_nothing(caplog):
    writer(1.0).write(results(1, error_class="server_error", response=b"their answer"))
    line = logs.JsonFormatter().format(caplog.records[0])
    assert set(orjson.loads(line)) == {"at", "level", "logger", "event", *KEYS}
    assert not [private for private in ("their answer", "hooks.example.com", "amount") if private in line]


@pytest.mark.parametrize(("sample", "least", "most"), [(0.0, 0, 0), (0.1, 70, 130), (1.0, 1000, 1000)])
def test_the_sample_sets_the_share_of_logged_successes(caplog, sample, least, most):
    writer(sample).write(results(1000))
    assert least <= len(caplog.records) <= most


def test_failures_are_logged_at_a_bounded_rate(caplog):
    clock = fakes.Clock()
    writing = writer(0.0, clock)
    writing.write(results(1000, error_class="connect"))
    assert len(caplog.records) == attempt_log.FAILURES_PER_S
    clock.now += 0.5
    writing.write(results(1000, error_class="connect"))
    assert len(caplog.records) == 1.5 * attempt_log.FAILURES_PER_S
    clock.now += 3600
    writing.write(results(1000, error_class="connect"))
    assert len(caplog.records) == 2.5 * attempt_log.FAILURES_PER_S  # an hour of quiet is no licence to burst


def test_no_line_is_written_below_the_log_level(caplog):
    caplog.set_level(logging.WARNING)
    writer(1.0).write(results(10, error_class="connect"))
    assert not caplog.records


def test_text_lines_have_the_fields_behind_the_message():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.TextFormatter())
    attempt_log.log.addHandler(handler)
    try:
        writer(1.0).write(results(1))
    finally:
        attempt_log.log.removeHandler(handler)
    assert "delivery.attempted webhook_id=" in stream.getvalue()
    assert stream.getvalue().endswith("outcome=delivered\n")
