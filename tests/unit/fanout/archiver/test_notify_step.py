"""A failure to publish operational events is logged, and stops neither archiving nor redrives nor replays."""

import threading

import pytest

from delivery import errors
from delivery.config import service_settings, settings
from delivery.stages.kafka import topics
from fanout.archiver import main_loop, notify_step, redrive_step
from tests.support.fakes import Clock

TOPIC = "events.fanout.operational"
CONFIG = settings.Settings(operations=service_settings.OperationsSettings(topic=TOPIC))
REFUSAL = "Kafka at … refuses a request (Broker: Topic authorization failed)"


class Kafka:
    """A Kafka that refuses a part of the step, and counts what was tried."""

    def __init__(self, refused=""):
        self.refused, self.tried = refused, []

    def ensure(self, *_):
        self._try("create")

    def publish(self, *_):
        self._try("write")
        return 1

    def _try(self, operation):
        self.tried.append(operation)
        if operation == self.refused:
            raise errors.KafkaUnavailable(REFUSAL)


@pytest.fixture
def kafka(monkeypatch):
    made = Kafka()
    monkeypatch.setattr(topics, "ensure", made.ensure)
    monkeypatch.setattr(notify_step, "publish", made.publish)
    return made


@pytest.mark.parametrize(("refused", "tried"), [("create", ["create"]), ("write", ["create", "write"])])
def test_a_refused_notice_topic_is_logged_and_tried_again(kafka, caplog, refused, tried):
    """Regression: without the right to create `operations.topic`, `fanout archive` archived no dead letter."""
    clock = Clock()
    notifier = notify_step.Notifier(CONFIG, clock=clock)
    kafka.refused = refused
    assert notifier.step(None, once=False) == 0
    assert kafka.tried == tried
    [record] = caplog.records
    assert REFUSAL in record.message
    assert f"the rights create and write on topic {TOPIC}" in record.message
    clock.now += notify_step.PAUSE_S - 1
    notifier.step(None, once=False)
    assert kafka.tried == tried
    clock.now += 1
    kafka.refused = ""
    assert [notifier.step(None, once=False) for _ in range(2)] == [1, 1]
    assert kafka.tried == [*tried, "create", "write", "write"]


def test_with_once_a_refused_notice_topic_is_an_error(kafka):
    kafka.refused = "create"
    with pytest.raises(errors.KafkaUnavailable, match="authorization"):
        notify_step.Notifier(CONFIG).step(None, once=True)


def test_redrives_run_while_the_notice_topic_is_refused(kafka, monkeypatch):
    """Regression: operational events that Kafka refused also stopped redrives and replays."""
    archiver = main_loop.Archiver(CONFIG, threading.Event())
    monkeypatch.setattr(redrive_step, "redrive", lambda *_, **__: 2)
    monkeypatch.setattr(archiver._replayer, "step", lambda *_, **__: 3)
    kafka.refused = "write"
    assert [archiver._run_steps(None, is_behind=False, once=False) for _ in range(2)] == [5, 5]
    assert kafka.tried == ["create", "write"]
