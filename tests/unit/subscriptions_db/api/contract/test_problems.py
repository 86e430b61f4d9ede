"""The operator's log says why requests are answered with 503, and a flood of them does not fill it."""

import logging

import psycopg
import pytest

from delivery import errors
from subscriptions_db.api.contract import problems

DENIED = errors.RegistryUnavailable("Postgres denies a right")
DENIED.__cause__ = psycopg.errors.InsufficientPrivilege()
AWAY = errors.RegistryUnavailable("Postgres cannot be reached")
OUTDATED = errors.RegistryOutdated("run `fanout db migrate`")
NO_KAFKA = errors.KafkaUnavailable("Kafka is away")
WRONG_RING = errors.SettingsError("keys.ring does not fit")


class Log:
    """The log of causes, on a clock of the test."""

    def __init__(self):
        self.now = 100.0
        self._log = problems.CauseLog(lambda: self.now)

    def write(self, *found):
        for exc in found:
            self._log.write(problems.from_error(exc), "req_1")


@pytest.mark.parametrize(
    ("exc", "level"),
    [
        (DENIED, logging.WARNING),
        (OUTDATED, logging.WARNING),
        (NO_KAFKA, logging.WARNING),
        (WRONG_RING, logging.ERROR),
        (errors.SealError("the key k1 is not in the key ring"), logging.ERROR),
    ],
)
def test_a_cause_that_the_operator_repairs_is_logged_with_the_request_id(caplog, exc, level):
    """Regression: only SettingsError was logged, so the operator saw 503 and no reason. SealError followed later."""
    Log().write(exc)
    [line] = caplog.records
    assert (line.levelno, line.request_id, line.left_out) == (level, "req_1", 0)
    assert str(exc) in line.getMessage()


def test_each_kind_of_cause_has_one_line_a_second(caplog):
    """Regression: a wrong setting was logged for every request."""
    log = Log()
    log.write(DENIED, DENIED, AWAY, WRONG_RING, WRONG_RING, DENIED)
    log.now += 0.9
    log.write(DENIED)
    log.now += 0.1
    log.write(DENIED, AWAY)
    log.now += 1.0
    log.write(DENIED)
    shown = [(line.getMessage().rpartition(": ")[2], line.left_out) for line in caplog.records]
    denied, away = str(DENIED), str(AWAY)
    assert shown == [(denied, 0), (away, 0), (str(WRONG_RING), 0), (denied, 3), (away, 0), (denied, 0)]


def test_a_refusal_that_the_platform_did_not_cause_is_not_logged(caplog):
    log = problems.CauseLog()
    log.write(problems.from_error(errors.RegistrationError("url", "is required")), "req_1")
    log.write(problems.unavailable("too many requests are in flight: try again"), "req_1")
    assert caplog.records == []


@pytest.mark.parametrize(
    ("exc", "cure"), [(OUTDATED, "mostly `fanout db migrate`"), (AWAY, "the log of this process says why")]
)
def test_a_process_that_is_not_ready_names_the_cure(exc, cure):
    refused = problems.not_ready(exc).problem
    assert refused.status == 503
    assert cure in refused.detail
