"""A record that is no event becomes a rejection with its exact bytes, and delays no other record of its topic."""

import base64
import collections
import itertools

import orjson
import pytest

from delivery.stages.kafka import topics
from delivery.webhooks.events import parsing
from delivery.webhooks.results import topic_rows
from fanout.kafka import publishing
from subscriptions_db.postgres import connect

pytestmark = pytest.mark.e2e
BINARY = (
    ("ce_specversion", b"1.0"),
    ("ce_id", b"poison"),
    ("ce_type", b"order"),
    ("ce_source", b"/shop"),
    ("ce_tenantid", b"t1"),
)
STRUCTURED = (("content-type", b"application/cloudevents+json"),)
DEEP = b"[" * 10_000 + b"]" * 10_000
POISON = [
    (None, (), "tombstone"),
    (b"", (), "empty"),
    (b" \n", (), "empty"),
    (b"not JSON", (), "not_json"),
    (b"\xff\xfe\x00{", (), "not_json"),
    (b'{"tenant_id":"t1","\xff":1}', (), "not_json"),
    (b'{"tenant_id":"t1","a":"\\ud800"}', (), "not_json"),
    (b'{"tenant_id":"t1","a":NaN}', (), "not_json"),
    (b'{"tenant_id":"t1","a":-Infinity}', (), "not_json"),
    (b'{"tenant_id":"t1","a":1%s}' % (b"0" * 5000), (), "not_json"),
    (b'\xef\xbb\xbf{"tenant_id":"t1"}', (), "not_json"),
    (b'{"tenant_id":"t1","a":%s}' % DEEP, (), "not_json"),
    (b'{"specversion":"1.0","data":%s}' % DEEP, STRUCTURED, "not_json"),
    (b"{", (("trace", b"\xff\xfe\x00"), ("", b""), ("né", "é".encode())), "not_json"),
    (b'{"id":"x"}', (), "missing_attribute"),
    (b'{"tenant_id":true}', (), "bad_attribute"),
    (b'{"tenant_id":["t1"]}', (), "bad_attribute"),
    (b'{"tenant_id":"t1","id":"a\\u0000b"}', (), "bad_attribute"),
    (b"{}", (*BINARY, ("ce_id", b"\xff")), "bad_attribute"),
    (b"{}", (*BINARY, ("ce_tenantid", b"t\0")), "bad_attribute"),
    (b"{}", (*BINARY, ("ce_time", b"yesterday")), "bad_attribute"),
    (b"{}", (*BINARY, ("ce_x\r\nwebhook-id", b"x")), "bad_attribute"),
    (b"{}", (*BINARY, ("ce_subject", b"a\r\nb: c")), "bad_attribute"),
    (b'{"specversion":"1.0","data_base64":5}', STRUCTURED, "bad_attribute"),
    (b"{}", (*BINARY, ("ce_specversion", b"0.3")), "unsupported"),
    (b"<a/>", (*BINARY, ("content-type", b"xml")), "unsupported"),
    (b"[]", (("content-type", b"application/cloudevents-batch+json"),), "unsupported"),
    (b'{"tenant_id":"nobody"}', (), "unknown_tenant"),
    (b'{"tenant_id":"t2"}', (), "suspended_tenant"),
    (b"x" * 900_000, (), "too_large"),
    (b'{"tenant_id":"t1"}', (("trace", b"x" * 600_000),), "too_large"),
    (b'{"tenant_id":"t1"}', (("", b""),) * 200_000, "too_large"),
    (None, (("", b""),) * 200_000, "tombstone"),
    (b"{", (("\x01" * 40_000, b""),), "not_json"),
]


def test_bad_records_are_kept_as_written_and_valid_events_are_delivered(platform):
    platform.register([{"event_type": "*"}], tenants=("t1", "t2", "t3"))
    with connect.connect(platform.config.database) as connection:
        connection.execute("update tenants set status = 'suspended' where tenant_id = 't2'")
    for name in ("order", "shop", "of.t1"):
        platform.create_topic(name)
    shared = itertools.cycle([f"{platform.name}.order", f"{platform.name}.shop"])
    poison = {
        message_to(topic, value, headers): reason for (value, headers, reason), topic in zip(POISON, shared, strict=False)
    }
    poison[message_to(f"{platform.name}.of.t1", b'{"tenant_id":"t3"}')] = "tenant_mismatch"
    placed, healthy = [], []
    publisher = publishing.Publisher(platform.config.kafka, placed.append)
    for message in poison:
        before, after = (f"{when}-{len(healthy)}" for when in ("before", "after"))
        healthy += [before, after]
        publisher.publish(message_to(message.topic, healthy_event(before)))
        publisher.publish(message)
        publisher.publish(message_to(message.topic, healthy_event(after)))
    # A topic whose name only contains the pattern is not ours to read.
    topics.ensure(platform.config.kafka, [f"other-{platform.name}.order"], 1)
    publisher.publish(message_to(f"other-{platform.name}.order", healthy_event("of-others")))
    publisher.flush()

    platform.run_once("--lanes", "direct,batch", source={"tenant_of_topic": rf"{platform.name}\.of\.(.+)"})

    assert sorted(platform.accepted()) == sorted(healthy)
    ledger = platform.ledger()
    assert not ledger.dead_letters
    counted = collections.Counter()
    for (lane, _), receipts in ledger.receipts.items():
        counted[lane] += sum(receipt.rejected for receipt in receipts)
    assert counted == {"direct": len(poison), "batch": len(poison)}
    assert len(ledger.rejected) == len(poison)
    for record in placed:
        if record.message in poison:
            row = ledger.rejected[record.message.topic, record.partition, record.offset]
            assert row.reason == poison[record.message]
            assert_keeps(row, record.message)
    platform.assert_adds_up()


def message_to(topic, value, headers=()):
    return publishing.Message(topic=topic, key=b"always one partition", value=value, headers=headers)


def healthy_event(event_id):
    return orjson.dumps({"id": event_id, "tenant_id": "t1"})


def assert_keeps(row, message):
    """All bytes, or as many as are kept of what is too large."""
    kept = None if row.value_base64 is None else base64.b64decode(row.value_base64)
    assert kept == (None if message.value is None else message.value[: topic_rows.MAX_REJECTED_BYTES])
    assert row.value_bytes == (None if message.value is None else len(message.value))
    headers = tuple((header.name, base64.b64decode(header.value_base64)) for header in row.headers)
    is_cut = sum(itertools.starmap(parsing.header_bytes, message.headers)) > topic_rows.MAX_REJECTED_BYTES
    assert headers == (message.headers[: len(headers)] if is_cut else message.headers)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("treatment", "of_times"), [("passed", "rejected"), ("told_apart", "passed"), ("rejected", "rejected")]
)
def test_reused_ids_and_invalid_times_are_treated_as_the_operator_has_set(platform, treatment, of_times):
    platform.register([{}])
    platform.create_topic("order")
    publisher = publishing.Publisher(platform.config.kafka)
    for fields in ({"id": "e0", "n": 0}, {"id": "e0", "n": 1}, {"id": "e1", "time": "yesterday"}):
        publisher.publish(message_to(f"{platform.name}.order", orjson.dumps({"tenant_id": "t1", **fields})))
    binary = {"ce_time": b"yesterday", **dict(BINARY), "ce_id": b"e2"}
    publisher.publish(message_to(f"{platform.name}.order", b"{}", tuple(binary.items())))
    publisher.flush()
    platform.run_once(source={"reused_ids": treatment, "invalid_time": of_times})
    is_rejected = treatment == "rejected"
    passed = ["e1", "e2"] if of_times == "passed" else []
    assert sorted(platform.accepted()) == ["e0", *([] if is_rejected else ["e0"]), *passed]
    of_e0 = {request.webhook_id for request in platform.received if b'"e0"' in request.body}
    assert len(of_e0) == (2 if treatment == "told_apart" else 1)
    rejected = sorted(row.reason for row in platform.ledger().rejected.values())
    assert rejected == ([] if passed else ["bad_attribute"] * 2) + (["reused_id"] if is_rejected else [])
