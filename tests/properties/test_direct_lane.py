"""Any record in the direct lane ends as a rejection, in outcomes or as a batch record, and as rows that Kafka accepts."""

import asyncio
import base64
import collections
import itertools

import orjson
from hypothesis import example, given, settings
from hypothesis import strategies as st

from delivery.model import OutcomeKind
from delivery.registry_model import EndpointStatus, Retrying, TenantId, TenantStatus
from delivery.webhooks.events import parsing
from delivery.webhooks.lanes import direct_lane
from delivery.webhooks.policy import backoff, error_classes
from delivery.webhooks.results import topic_rows
from delivery.webhooks.results.task_results import Results
from delivery.webhooks.retries import retry_records
from delivery.webhooks.routing import intake, registries
from tests.support import builders, fakes, thoroughness
from tests.support.dispatching import fast_lane, new_memory

TOPICS = topic_rows.Topics(attempts="attempts", dead_letters="dead", rejected="rejected", retries="retries")
MAX_KAFKA_BYTES = 1024 * 1024
FILTERS = [
    {"data": {"a": [1, "x", None, True, {"prefix": "x"}, {"wildcard": "*x*"}, {"anything-but": [2]}]}},
    {"data": {"a": {"b": [{"exists": False}, {"cidr": "10.0.0.0/8"}, {"suffix": {"equals-ignore-case": "X"}}]}}},
    {"$or": [{"data": {"a": [{"numeric": [">", 0, "<", 1e308]}]}}, {"id": [{"equals-ignore-case": "E1"}]}]},
]
SNAPSHOT = builders.snapshot(
    builders.endpoint(),
    builders.subscription("all", event_type="*"),  # so that every event is due at least once
    *[builders.subscription(f"filter-{n}", event_type="*", filter_pattern=pattern) for n, pattern in enumerate(FILTERS)],
)
SNAPSHOT.tenants[TenantId("gone")] = TenantStatus.SUSPENDED

# --- values: mostly JSON, often with what a CloudEvent has, seldom what it should be ---------------------------------------

STRUCTURED = (("content-type", b"application/cloudevents+json"),)
BATCH = (("content-type", b"application/cloudevents-batch+json"),)
ATTRIBUTES = {"specversion": "1.0", "id": "e1", "type": "x", "source": "/s", "tenantid": "t1"}
BINARY = tuple((f"ce_{name}", text.encode()) for name, text in ATTRIBUTES.items())
RAW = [
    "null", "true", "NaN", "-Infinity", "9223372036854775808", "18446744073709551616", "1" + "0" * 400, "1" + "0" * 5000,
    "1e400", '"t1"', '"gone"', '"\\ud800"', '"\\udc00\\ud800"', '"\\u0000"', '"MTI="', "[" * 900 + "]" * 900,
    "[" * 1023 + "]" * 1023, "[" * 10_000 + "]" * 10_000, "[" * 10_000, '{"a":' * 900 + "1" + "}" * 900,
]  # fmt: skip


def raw_object(pairs):
    """Draw JSON with duplicate keys, and with spaces wherever JSON allows them."""
    members = " ,\n".join(f"{orjson.dumps(name).decode()} : {value}" for name, value in pairs)
    return f"{{ {members} }}"


names = st.sampled_from([*ATTRIBUTES, "tenant_id", "sub_tenant_id", "subtenantid", "time", "data", "data_base64", "a", "b", ""])
scalars = st.sampled_from(RAW) | st.text(max_size=20).map(lambda text: orjson.dumps(text).decode()) | st.integers().map(str)
nested = st.recursive(
    scalars | st.floats().map(repr),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{','.join(items)}]")
        | st.lists(st.tuples(names, inner), max_size=4).map(raw_object)
    ),
    max_leaves=6,
)
good = [*[(name, f'"{text}"') for name, text in ATTRIBUTES.items()], ("tenant_id", '"t1"')]
members = st.lists(st.tuples(names, nested), max_size=5)
objects = members.map(raw_object) | members.map(lambda more: raw_object([*good, *more]))
values = st.none() | st.binary(max_size=60) | (objects | nested).map(str.encode)

contents = st.binary(max_size=10) | st.sampled_from([b"1.0", b"t1", b"gone", b"x", b"\xff", b"\0", b"\xed\xa0\x80"])
header_names = names.map("ce_{}".format) | st.sampled_from(["ce_", "CE_ID", "content-type"]) | st.text(max_size=5)
header_lists = st.lists(st.tuples(header_names, contents), max_size=6).map(tuple)
records = st.builds(
    builders.record,
    topic=st.sampled_from(["events.x", "events.", "x"]),
    value=values,
    headers=header_lists | header_lists.map(lambda more: BINARY + more) | st.sampled_from([STRUCTURED, BATCH]),
    appended_at_ms=st.integers(-(2**63), 2**63 - 1) | st.integers(0, 2**42),
)


def deliver(batch, layout):
    clock = fakes.Clock()
    sender = fakes.FakeSender(lambda *_: error_classes.REFUSED, clock)

    async def main():
        dispatcher, deferrals = fast_lane(sender, clock, quick_retry=backoff.QuickRetry())
        begun = direct_lane.DirectLane(registries.WholeRegistry("base", SNAPSHOT), dispatcher, deferrals, layout)
        first, rest = await begun.submit(batch), await begun.finish()
        return Results(
            outcomes=first.outcomes + rest.outcomes,
            rejections=first.rejections + rest.rejections,
            receipts=rest.receipts,
            batch_records=first.batch_records,
        )

    return asyncio.run(main())


@settings(max_examples=thoroughness.cases(160, thorough=400), deadline=None)
@given(st.lists(records, max_size=4))
@example([builders.record(value=b'{"tenant_id":"t1"}', appended_at_ms=1_700_000_000_000_000)])  # microseconds
@example([builders.record(value=b'{"tenant_id":"t1"}', headers=(("", b""),) * 100_000)])
@example([builders.record(value=None, headers=(("", b""),) * 100_000)])
@example([builders.record(value=b'{"tenant_id":"t1"}', headers=(("\x01" * 200_000, b""),))])
@example([builders.record(value=b"{", headers=(("\x01" * 60_000, b""),))])
@example([builders.record(value=b'{"tenant_id":"t1","a":"%s"}' % (b"x" * 690_000))])
@example([builders.record(value=b'{"tenant_id":"t1","a":"%s"}' % (b"x" * 340_000), headers=(("a", b"\xff" * 340_000),))])
@example([builders.record(value=b"[{}]", headers=BATCH), builders.record(value=b"[]", headers=BATCH)])
def test_each_record_is_rejected_or_has_outcomes(batch):
    batch = [record._replace(offset=offset) for offset, record in enumerate(batch)]
    layout = parsing.Layout(max_bytes=700_000, takes_batches_apart=True)  # the most bytes that can be set
    results = deliver(batch, layout)
    rejected = collections.Counter(rejection.record.offset for rejection in results.rejections)
    due = collections.Counter(outcome.delivery.event.record.offset for outcome in results.outcomes)
    taken_apart = collections.Counter(batched.record.offset for batched in results.batch_records)
    for record in batch:
        found = (rejected[record.offset], due[record.offset] > 0, taken_apart[record.offset])
        assert found in {(1, False, 0), (0, True, 0), (0, False, 1)}
    assert sum(receipt.records for receipt in results.receipts) == len(batch)
    assert sum(receipt.rejected for receipt in results.receipts) == len(results.rejections)
    written = list(topic_rows.rows(results, TOPICS, now_ms=0))
    assert max((len(row.key) + len(row.value) for row in written), default=0) < MAX_KAFKA_BYTES
    letters = [orjson.loads(row.value) for row in written if row.topic == "rejected"]
    for letter, rejection in zip(letters, results.rejections, strict=True):
        kept = None if letter["value_base64"] is None else base64.b64decode(letter["value_base64"])
        value = rejection.record.value
        assert kept == (None if value is None else value[: topic_rows.MAX_REJECTED_BYTES])
        headers = [(header["name"], base64.b64decode(header["value_base64"])) for header in letter["headers"]]
        assert headers == list(rejection.record.headers)[: len(headers)]


ENDINGS = {
    OutcomeKind.DELIVERED: lambda o: o.attempts[-1].error_class is None and o.next_attempt is None,
    OutcomeKind.DEAD_LETTERED: lambda o: o.attempts[-1].error_class == o.reason and o.next_attempt is None,
    OutcomeKind.SKIPPED: lambda o: not o.attempts and o.next_attempt is None,
    OutcomeKind.POSTPONED: lambda o: o.reason and o.next_attempt is not None,
}
NAMES = [f"ep{n}" for n in range(5)]
endpoints = st.fixed_dictionaries(
    {
        "status": st.sampled_from(EndpointStatus),
        "order_by": st.sampled_from([None, None, "a"]),
        "retrying": st.sampled_from([Retrying(), Retrying(schedule_s=()), Retrying(max_age_s=1.0)]),
        "fault": st.sampled_from([None, None, None, "a secret that does not open"]),
        "max_per_second": st.sampled_from([None, None, 1.0]),
        "max_in_flight": st.sampled_from([None, 1]),
    }
)
fates = st.sampled_from([None, None, "timeout", "connect", "local", "server_error", "throttled", "refused", "gone"])


@settings(max_examples=60, deadline=None)
@given(
    registered=st.lists(endpoints, min_size=len(NAMES), max_size=len(NAMES)),
    answers=st.lists(fates, min_size=1, max_size=30),
    held=st.frozensets(st.sampled_from(NAMES), max_size=2),
    events=st.lists(st.integers(0, 30), min_size=1, max_size=2),
)
def test_every_due_delivery_ends_in_one_outcome(registered, answers, held, events):
    """Micro-batches run one after the other, with any endpoints and answers. Postponed deliveries become retry entries."""
    clock, answered = fakes.PassingClock(), itertools.cycle(answers)
    memory = new_memory(clock)
    to = [builders.endpoint(name, **fields) for name, fields in zip(NAMES, registered, strict=True)]
    due = [builders.subscription(f"s-{name}", endpoint_id=name, event_type="*") for name in NAMES]
    registry = registries.WholeRegistry("base", builders.snapshot(*to, *due))
    sender = fakes.FakeSender(lambda *_: next(answered), clock)

    async def micro_batch(count):
        dispatcher, deferrals = fast_lane(sender, clock, suppressed=held, memory=memory, quick_retry=backoff.QuickRetry())
        begun = direct_lane.DirectLane(registry, dispatcher, deferrals, parsing.Layout())
        records = [
            builders.record(offset=n, value=orjson.dumps({"id": f"e{n}", "tenant_id": "t1", "a": n % 3})) for n in range(count)
        ]
        first, rest = await begun.submit(records), await begun.finish()
        return Results(outcomes=first.outcomes + rest.outcomes)

    async def main():
        clock.install()
        return [await micro_batch(count) for count in events]

    for count, results in zip(events, asyncio.run(main()), strict=True):
        ended = collections.Counter(o.delivery.webhook_id for o in results.outcomes)
        assert (len(ended), set(ended.values())) == (count * len(NAMES), {1} if count else set())
        for outcome in results.outcomes:
            assert ENDINGS[outcome.kind](outcome), outcome
        postponed = [o for o in results.outcomes if o.kind is OutcomeKind.POSTPONED]
        rows = topic_rows.deferral_rows(results, TOPICS, now_ms=1_700_000_000_000)
        read = list(retry_records.messages(*(row.value for row in rows)))
        waits = [(row.endpoint_id, entry.order_key, entry.reason, entry.attempts) for row in read for entry in row.entries]
        assert collections.Counter(waits) == collections.Counter(
            (o.delivery.endpoint.endpoint_id, o.delivery.order_key, o.reason, len(o.attempts)) for o in postponed
        )


def test_an_unforeseen_error_rejects_one_record_only(monkeypatch, caplog):
    healthy, broken = builders.record(value=b'{"tenant_id":"t1"}'), builders.record(offset=8, value=b'{"tenant_id":"t1","n":1}')
    parse = parsing.parse

    def with_a_bug(record, layout):
        if record.offset == 8:
            raise RuntimeError("a bug")
        return parse(record, layout)

    monkeypatch.setattr(parsing, "parse", with_a_bug)
    results = deliver([healthy, broken], parsing.Layout())
    assert [(rejection.record.offset, rejection.reason) for rejection in results.rejections] == [(8, intake.UNFORESEEN)]
    assert {outcome.delivery.event.record.offset for outcome in results.outcomes} == {7}
    assert "unforeseen" in caplog.text
