"""docs/operational-events.md has an example of every operational event, equal to what the platform sends."""

import datetime as dt
import re
from pathlib import Path

import orjson
import pytest

from delivery.config import service_settings, settings
from delivery.model import Record
from delivery.registry_model import ContentMode
from delivery.webhooks.events import parsing
from delivery.webhooks.sending import payload
from fanout.archiver import main_loop, notify_step
from subscriptions_db.archive.notifications import endpoint_health, key_expiry, outbox, quotas
from subscriptions_db.archive.notifications.endpoint_health import EndpointHealth, EventKind, Policy, Signal, SignalKind
from subscriptions_db.archive.notifications.quotas import Quota

TEXT = (Path(__file__).parents[5] / "docs" / "operational-events.md").read_text()
EXAMPLES = [orjson.loads(example) for example in re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)]
POLICY = Policy(failing_after_s=300, backlog_events=1000, quiet_s=3600)
TOPIC = "events.fanout.operational"
NOW = dt.datetime(2026, 5, 10, 12, 0, tzinfo=dt.UTC)


def signals_of(kind, since, at, data):
    """Return signals after which the operational event of an example follows."""

    def seen(signal_kind, moment, times=1):
        return Signal("acme-orders", "acme", signal_kind, moment, times, data.get("reason") or data.get("error_class"))

    failed = [seen(SignalKind.FAILED, since, data.get("failures", 12) - 1)]
    match kind:
        case EventKind.FAILING:
            return [*failed, seen(SignalKind.FAILED, at)]
        case EventKind.RECOVERED:
            return [*failed, seen(SignalKind.FAILED, since + dt.timedelta(seconds=300)), seen(SignalKind.ACCEPTED, at)]
        case EventKind.DISABLED:
            return [seen(SignalKind.DISABLED, at)._replace(since=since)]
        case EventKind.BACKLOG_GROWING:
            return [seen(SignalKind.POSTPONED, since, data["events"] - 1), seen(SignalKind.POSTPONED, at)]
        case EventKind.DEAD_LETTERS_WAITING:
            earlier = seen(SignalKind.DEAD_LETTER, at - dt.timedelta(seconds=3600))
            return [earlier, seen(SignalKind.DEAD_LETTER, since, data["letters"]), seen(SignalKind.WOKEN, at)]


def event_of(kind, at, data):
    """Return the operational event of an example."""
    if kind is EventKind.KEY_EXPIRING:
        key = data | {"customer_id": "acme", "expires_at": dt.datetime.fromisoformat(data["expires_at"])}
        return key_expiry.event_about(key, at)
    if kind is EventKind.QUOTA_REACHED:
        found = quotas.ReachedQuota(Quota(data["quota"]), data["customer_id"], data["customer_id"], data["limit"])
        return quotas.after(found, most=data["limit"], policy=POLICY, now=at)[1]
    known, operational = EndpointHealth(), None
    for signal in signals_of(kind, dt.datetime.fromisoformat(data["since"]), at, data):
        known, operational = endpoint_health.apply(known, signal, POLICY)
    return operational


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example["type"])
def test_an_example_equals_the_delivered_event(example):
    operational = event_of(EventKind(example["type"]), dt.datetime.fromisoformat(example["timestamp"]), example["data"])
    waiting = outbox.OutboxEvent(
        operational.event_id,
        operational.kind.value,
        operational.subject_id,
        operational.customer_id,
        operational.at,
        operational.data,
    )
    made = notify_step.message(waiting, TOPIC)
    record = Record(TOPIC, 0, 0, 0, made.value, made.headers)
    event = parsing.parse(record, parsing.Layout(tenant_path=("elsewhere",), operational_topic=TOPIC))
    assert list(orjson.loads(payload.content(event, ContentMode.STANDARD).body).items()) == list(example.items())


def test_only_operators_get_an_event_about_a_tenant():
    """The event has no sub-tenant, and a customer's subscription to operational events names one.

    The version before publishes it with an empty sub-tenant, which the job reads as none.
    """
    about = {"quota": "events_per_day", "tenant_id": "acme", "limit": 100, "since": "2026-05-10T12:00:00.000Z"}
    made = notify_step.message(outbox.OutboxEvent("op_1", "fanout.quota.reached", "acme", None, NOW, about), TOPIC)
    for headers in (made.headers, (*made.headers, ("ce_subtenantid", b""))):
        event = parsing.parse(Record(TOPIC, 0, 0, 0, made.value, headers), parsing.Layout(operational_topic=TOPIC))
        assert (event.tenant_id, event.sub_tenant_id) == ("fanout", None)


def test_every_event_type_has_an_example_and_a_table_row():
    rows = re.findall(r"^\| `(fanout\.[a-z.-]+)`", TEXT, re.MULTILINE)
    assert [example["type"] for example in EXAMPLES] == list(EventKind) == rows


def test_the_default_policy_is_that_of_the_document():
    policy = main_loop.policy_of(settings.Settings(operations=service_settings.OperationsSettings(topic=TOPIC)))
    assert policy == POLICY
    assert main_loop.policy_of(settings.Settings()) is None
