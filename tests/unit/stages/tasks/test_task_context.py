"""A background result is written whole before its shard hears of it, and forgets the entry."""

import msgspec
import orjson
import pytest

from delivery import errors
from delivery.config import plan_builder, settings
from delivery.model import Attempt, Outcome, OutcomeKind
from delivery.stages.tasks import task_context
from delivery.webhooks.lanes import gc_tuning, retry_lane
from delivery.webhooks.results import task_results
from delivery.webhooks.retries import retry_messages
from delivery.webhooks.scheduling import background_attempts
from tests.support import builders

CONFIG = settings.Settings()


class Writing:
    """Remembers what it was handed, and when it was waited for."""

    def __init__(self, *, fails=False):
        self.story = []
        self._fails = fails

    def write(self, made):
        self.story += [(row.topic, row.value) for row in made]

    def finish(self):
        if self._fails:
            raise errors.KafkaUnavailable("away")
        self.story.append("in its topic")


def ended(kind=OutcomeKind.DELIVERED, error_class=None):
    attempt = Attempt(number=1, started_at_ms=0, duration_ms=1500.0, status=None, error_class=error_class)
    return background_attempts.BackgroundResult(b"name", Outcome(builders.delivery(), kind, (attempt,), error_class))


def rows_of(writing, *some):
    tools = task_context.Tools(plan=plan_builder.plan_of(CONFIG), observe=lambda _: None, sink=lambda: writing)
    tools.write_background_results(task_results.background_results(some), list(some), 1)
    return writing.story


def test_a_background_result_is_in_its_topics_before_its_name_is_reported():
    dead = ended(OutcomeKind.DEAD_LETTERED, "timeout")
    log, letter, health, waited, name, waited_again = rows_of(Writing(), dead)
    assert (log[0], letter[0], name[0]) == (
        CONFIG.delivery.attempts_topic, CONFIG.delivery.dead_letter_topic, CONFIG.delivery.retries_topic,
    )  # fmt: skip
    assert orjson.loads(log[1])["entries"][0]["error_class"] == "timeout"
    assert msgspec.structs.replace(retry_messages.message(health[1]), at_ms=0) == retry_messages.Postponed(
        "ep1", "c1", [], accepts=False
    )
    assert retry_messages.message(name[1]) == retry_messages.Postponed("ep1", "c1", [], [b"name"])
    assert waited == waited_again == "in its topic"


def test_a_result_that_could_not_be_written_is_not_reported_as_ended():
    writing = Writing(fails=True)
    with pytest.raises(errors.KafkaUnavailable):
        rows_of(writing, ended())
    assert [topic for topic, _ in writing.story] == [CONFIG.delivery.attempts_topic]


def test_background_results_of_an_endpoint_are_reported_together():
    first, second = ended(), ended()._replace(name=b"other")
    *_, (_, name), _ = rows_of(Writing(), first, second)
    assert retry_messages.message(name) == retry_messages.Postponed("ep1", "c1", [], [b"name", b"other"], accepts=True)


def test_a_turn_is_reported_when_what_came_of_it_is_in_its_topics():
    """A shard forgets by the report what then was written nowhere: the process might be killed between the two."""
    writing = Writing()
    dead = ended(OutcomeKind.DEAD_LETTERED, "timeout").outcome
    report = retry_messages.Report(
        "ep1", "c1", None, lease=1, delivered=0, failed=1, blocked=None, retry_after_s=None, requeued=[]
    )
    task = task_context.Tools(plan=plan_builder.plan_of(CONFIG), observe=lambda _: None, sink=lambda: writing).begin()
    task.write_leases(retry_lane.LeaseResults(task_results.Results(outcomes=[dead]), [report]))
    log, letter, waited, report_row = writing.story
    assert (log[0], letter[0]) == (CONFIG.delivery.attempts_topic, CONFIG.delivery.dead_letter_topic)
    assert waited == "in its topic"
    assert retry_messages.message(report_row[1]) == report


def write_by_a_fast_lane(tools, dead):
    tools.begin().write(task_results.Results(outcomes=[dead.outcome]))


def write_by_the_retry_lane(tools, dead):
    tools.begin().write_leases(retry_lane.LeaseResults(task_results.Results(outcomes=[dead.outcome]), []))


def write_in_the_background(tools, dead):
    tools.write_background_results(task_results.background_results([dead]), [dead], 1)


@pytest.mark.parametrize("write", [write_by_a_fast_lane, write_by_the_retry_lane, write_in_the_background])
def test_a_dead_letter_has_the_drivers_time(write, monkeypatch):
    """Regression: it had the worker's own time. With a worker behind, `GET /v1/deliveries` showed the delivery as waiting."""
    plan, writing = plan_builder.plan_of(CONFIG), Writing()
    monkeypatch.setattr(task_context.shared_worker(plan), "now_s", lambda: 1_700_000_000.5)
    write(
        task_context.Tools(plan=plan, observe=lambda _: None, sink=lambda: writing), ended(OutcomeKind.DEAD_LETTERED, "timeout")
    )
    [letter] = [step[1] for step in writing.story if step[0] == CONFIG.delivery.dead_letter_topic]
    assert orjson.loads(letter)["dead_lettered_at_ms"] == 1_700_000_000_500


def test_a_task_freezes_live_objects_once_at_its_beginning(monkeypatch):
    frozen = []
    monkeypatch.setattr(gc_tuning.GarbageCollector, "freeze", lambda _: frozen.append("once"))
    tools = task_context.Tools(plan=plan_builder.plan_of(CONFIG), observe=lambda _: None, sink=Writing)
    begun = tools.begin()
    assert frozen == ["once"]
    begun.finish()
    assert frozen == ["once"]


def test_a_background_result_reports_an_endpoint_that_is_gone():
    assert task_results.background_results([ended(OutcomeKind.POSTPONED, "gone")]).gone == {builders.endpoint().as_attempted()}
