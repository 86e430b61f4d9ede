"""The setting `source.reused_ids`: events with the source and id of an earlier event, and another payload."""

import asyncio

import msgspec
import orjson
import pytest

from delivery.config import plan_builder, settings
from delivery.model import Outcome, OutcomeKind
from delivery.payload_form import Opaque, PayloadForm
from delivery.registry_model import DeliveryMode
from delivery.webhooks.batching import segment
from delivery.webhooks.events import parsing
from delivery.webhooks.results import dead_letter_records, dead_letter_rows
from delivery.webhooks.routing import intake, registries, seen_ids
from delivery.webhooks.sending import batch_payload, payload
from tests.support import builders

PASSED, REJECTED, TOLD_APART = (
    plan_builder.layout_of(settings.Settings(source=settings.SourceSettings(reused_ids=word)))
    for word in ("passed", "rejected", "told_apart")
)


def record(offset, *, tenant="t1", **payload_fields):
    document = {"id": "e1", "tenant_id": tenant} | payload_fields
    return builders.record(offset=offset, value=orjson.dumps(document))


def taken(layout, *records, seen=None):
    """Return the offsets of delivered events, the reasons of rejected records by offset, and the count of reused ids."""
    registry = registries.WholeRegistry("", builders.snapshot(builders.endpoint(), builders.subscription()))
    lane = intake.Intake(registry, layout, DeliveryMode.DIRECT, lambda event, _: event, seen)
    rejections = []

    async def take():
        return [await lane.accept(source_record, rejections) for source_record in records]

    events = asyncio.run(take())
    [receipt] = lane.receipts()
    assert (receipt.due, receipt.rejected) == (len(records) - len(rejections), len(rejections))
    return (
        [event.record.offset for event in events if event is not None],
        {rejected.record.offset: rejected.reason for rejected in rejections},
        lane.drain_reused_ids(),
    )


def test_by_default_both_events_are_delivered_and_counted():
    assert taken(PASSED, record(1, a=1), record(2, a=2)) == ([1, 2], {}, 1)


def test_the_second_event_is_rejected_and_a_repeat_is_not():
    records = record(1, a=1), record(2, a=2), record(3, a=1), record(4, id="e2", a=2)
    assert taken(REJECTED, *records) == ([1, 3, 4], {2: "reused_id"}, 0)


def test_a_micro_batch_that_runs_again_rejects_the_same_events():
    seen, records = seen_ids.SeenIds(), (record(1, a=1), record(2, a=2))
    assert taken(REJECTED, *records, seen=seen) == taken(REJECTED, *records, seen=seen)


def test_another_worker_does_not_know_the_first_event():
    assert taken(REJECTED, record(1, a=1))[0] == [1]
    assert taken(REJECTED, record(2, a=2))[0] == [2]


def test_no_tenant_has_the_events_of_another_rejected():
    seen = seen_ids.SeenIds()
    first, second = (builders.event(tenant_id=tenant, data=data) for tenant, data in (("t1", b"1"), ("t2", b"2")))
    assert not seen.is_reused_by_its_tenant(first)
    assert not seen.is_reused_by_its_tenant(second)
    assert seen.is_reused_by_its_tenant(first._replace(data=b"3"))


def test_told_apart_two_payloads_have_two_webhook_ids_and_repeats_have_one():
    records = (record(1, a=1), record(2, a=1), record(3, a=2))
    first, repeat, second = (parsing.parse(source_record, TOLD_APART) for source_record in records)
    ids = [payload.webhook_id(event, "s1") for event in (first, repeat, second)]
    assert (ids[0] == ids[1], ids[0] == ids[2]) == (True, False)
    assert {event.event_id for event in (first, repeat, second)} == {"e1"}
    assert taken(TOLD_APART, record(1, a=1), record(3, a=2))[0] == [1, 3]


def test_told_apart_every_way_of_an_event_keeps_its_webhook_id():
    """The retry lane packs the event, and a redrive reads its dead letter. Neither reads the setting."""
    event = parsing.parse(record(1, a=1), TOLD_APART)
    webhook_id = payload.webhook_id(event, "s1")
    packed = segment.unpacked(segment.item(event, 0).packed)
    named = segment.item(event._replace(json_type="image/x+json"), 0).packed
    assert segment.packed(segment.unpacked(named)) == named
    assert payload.webhook_id(segment.unpacked(named), "s1") == webhook_id
    assert payload.webhook_id(packed, "s1") == payload.webhook_id(packed.event(), "s1") == webhook_id
    assert segment.packed(packed) == segment.item(event, 0).packed
    other = segment.unpacked(segment.item(parsing.parse(record(1, a=2), TOLD_APART), 0).packed)
    assert batch_payload.webhook_id("ep1", [packed], ["s1"]) != batch_payload.webhook_id("ep1", [other], ["s1"])


@pytest.mark.parametrize("layout", [PASSED, TOLD_APART])
def test_a_dead_letter_has_the_webhook_id_of_its_delivery(layout):
    event = parsing.parse(record(1, a=1), layout)
    outcome = Outcome(builders.delivery(event=event, webhook_id=payload.webhook_id(event, "s1")), OutcomeKind.DEAD_LETTERED)
    written = dead_letter_records.encode(dead_letter_rows.dead_letter(outcome, now_ms=0))
    letter = dead_letter_records.decode(written)
    assert payload.webhook_id(letter.event(), "s1") == payload.webhook_id(event, "s1") == letter.webhook_id
    assert (b"payload_digest" in written) is (layout is TOLD_APART)


def test_without_the_setting_no_stored_byte_is_added():
    events = [parsing.parse(record(1, a=1), PASSED), builders.event(opaque=Opaque(PayloadForm.TEXT, "text/plain"))]
    packed = [segment.item(event, 0).packed for event in events]
    assert [len(msgspec.msgpack.decode(item)) for item in packed] == [12, 14]
    assert [segment.packed(segment.unpacked(item)) for item in packed] == packed
