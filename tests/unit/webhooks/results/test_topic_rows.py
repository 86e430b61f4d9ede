"""Results become rows for Kafka: log entries, dead letters with their attempt history, and rejected records."""

import base64
import dataclasses

import msgspec
import orjson
import pytest

from delivery.model import Attempt, LeaveReason, Outcome, OutcomeKind, SkipReason
from delivery.registry_model import Auth, AuthKind, DeliveryMode
from delivery.secret import Secret
from delivery.webhooks.batching import segment
from delivery.webhooks.policy import response_headers
from delivery.webhooks.results import dead_letter_records, log_records, topic_rows
from delivery.webhooks.results.task_results import Results
from delivery.webhooks.routing import intake
from delivery.webhooks.sending import batch_payload
from tests.support import archive, builders, written_topics
from tests.support.batches import endpoint

TOPICS = topic_rows.Topics(attempts="attempts", dead_letters="dead", rejected="rejected", retries="retries")
NOW_MS = 1_700_000_000_000


def attempt(number, error_class, **fields):
    return Attempt(number=number, started_at_ms=1000 * number, duration_ms=1.26, error_class=error_class, status=None, **fields)


def written(**results):
    return [(row.topic, row.key, orjson.loads(row.value)) for row in topic_rows.rows(Results(**results), TOPICS, now_ms=NOW_MS)]


def test_every_attempt_is_an_entry_under_its_endpoints_key():
    outcome = Outcome(
        delivery=builders.delivery(),
        kind=OutcomeKind.DELIVERED,
        attempts=(attempt(1, "timeout"), attempt(2, None)),
    )
    [(topic, key, row)] = written(outcomes=[outcome])
    assert (topic, key, row["kind"]) == ("attempts", b"ep1", "outcomes")
    assert (row["endpoint_id"], row["customer_id"], row["mode"]) == ("ep1", "c1", "direct")
    first, second = row["entries"]
    assert [(entry["kind"], entry["attempt"], entry["error_class"]) for entry in (first, second)] == [
        ("attempt", 1, "timeout"),
        ("attempt", 2, None),
    ]
    assert (first["topic"], first["partition"], first["offset"]) == ("events.order.created", 0, 7)


def test_only_entries_of_one_endpoint_share_bounded_rows():
    many = [
        Outcome(
            delivery=builders.delivery(endpoint=builders.endpoint(f"ep{n % 2}")),
            kind=OutcomeKind.DELIVERED,
            attempts=(attempt(1, None, detail="x" * 20_000),),
        )
        for n in range(60)
    ]
    made = list(topic_rows.rows(Results(outcomes=many), TOPICS, now_ms=NOW_MS))
    assert 4 <= len(made) < 10
    assert max(len(row.value) for row in made) < topic_rows.MAX_ROW_BYTES + 1000
    for endpoint_id in ("ep0", "ep1"):
        written_rows = [orjson.loads(row.value) for row in made if row.key == endpoint_id.encode()]
        expected = [outcome.delivery.webhook_id for outcome in many if outcome.delivery.endpoint.endpoint_id == endpoint_id]
        assert [entry["webhook_id"] for row in written_rows for entry in row["entries"]] == expected
        assert {row["endpoint_id"] for row in written_rows} == {endpoint_id}


def test_an_endpoint_id_of_two_endpoints_has_records_for_each():
    """Regression: one record had entries of two customers. The retry lane ends deliveries of a deleted endpoint, and of another
    endpoint to which another customer has given its id, or which has the other mode.
    """
    mine, foreign = {"customer_id": "c1"}, {"customer_id": "c2"}
    endpoints = [mine, foreign, mine, mine | {"mode": DeliveryMode.BATCH}]
    skipped = [
        Outcome(builders.delivery(endpoint=builders.endpoint(**fields)), OutcomeKind.SKIPPED, reason="endpoint_deleted")
        for fields in endpoints
    ]
    made = [(row["customer_id"], row["mode"], len(row["entries"])) for _, _, row in written(outcomes=skipped)]
    assert made == [("c1", "direct", 2), ("c2", "direct", 1), ("c1", "batch", 1)]


def test_the_entry_of_a_huge_batch_is_divided_and_names_each_event_once():
    """Regression: Kafka refused the record, so the batch was sent again and again, and its lane stood still for all."""
    count = 10_000
    packed = segment.unpacked(segment.item(builders.event(), 0).packed)
    events = [msgspec.structs.replace(packed, offset=offset) for offset in range(count)]
    subscription_ids = [f"{offset:0>100}" for offset in range(count)]
    to = endpoint()
    delivery = batch_payload.BatchDelivery(to, "batch_1", b"", b"", b"", events, subscription_ids, LeaveReason.COUNT)
    outcome = Outcome(delivery, OutcomeKind.DELIVERED, (attempt(1, "server_error"), attempt(2, None)))
    topics = topic_rows.Topics(attempts="a", dead_letters="d", rejected="r", retries="t")
    batch = batch_payload.BatchOutcome(outcome, {1: "no", 9999: "no"})
    rows = [row for row in topic_rows.rows(Results(batches=[batch]), topics, now_ms=0) if row.topic == "a"]
    assert max(len(row.value) for row in rows) < 1_000_000
    entries = [entry for row in rows for entry in log_records.decode(row.value).entries]
    for number in (1, 2):
        of_attempt = [entry for entry in entries if entry.attempt == number]
        assert {entry.webhook_id for entry in of_attempt} == {"batch_1"}
        assert sum(entry.count for entry in of_attempt) == count
        due = [(found.subscription_id, found.offset) for entry in of_attempt for found in entry.due()]
        assert sorted(due) == list(zip(subscription_ids, range(count), strict=True))
        accepted = {found.offset for entry in of_attempt for found in entry.accepted()}
        assert accepted == {*range(count)} - {1, 9999}


def test_a_skipped_delivery_is_one_entry_with_its_reason():
    outcome = Outcome(delivery=builders.delivery(), kind=OutcomeKind.SKIPPED, reason=SkipReason.SUBSCRIPTION_PAUSED)
    [(topic, _, row)] = written(outcomes=[outcome])
    assert [(topic, entry["kind"], entry["reason"]) for entry in row["entries"]] == [
        ("attempts", "skipped", "subscription_paused")
    ]


def test_a_dead_letter_has_the_attempt_history_and_no_secret():
    endpoint = builders.endpoint(
        url="https://hooks.example.com/secret-path?token=hunter2",
        auth=Auth(kind=AuthKind.BEARER, secret=Secret(b"hunter2")),
    )
    event = builders.event(data=b'{ "a": 1 }', record=builders.record(headers=(("trace", b"\xff1"),)))
    failed = (attempt(1, "server_error", response=b"no\xff"), attempt(2, "timeout", detail="no answer"))
    delivery = builders.delivery(event=event, endpoint=endpoint)
    outcome = Outcome(delivery=delivery, kind=OutcomeKind.DEAD_LETTERED, attempts=failed, reason="timeout")
    *_, (topic, key, entry) = written(outcomes=[outcome])
    assert (topic, key, entry["reason"]) == ("dead", b"ep1", "timeout")
    assert base64.b64decode(entry["payload_base64"]) == b'{ "a": 1 }'
    [header] = entry["headers"]
    assert (header["name"], base64.b64decode(header["value_base64"])) == ("trace", b"\xff1")
    assert entry["url_origin"] == "https://hooks.example.com"
    assert [(a["attempt"], a["error_class"], a["response"], a["detail"]) for a in entry["attempts"]] == [
        (1, "server_error", "no\ufffd", ""),
        (2, "timeout", "", "no answer"),
    ]
    assert "hunter2" not in str(entry)
    assert "secret-path" not in str(entry)


@pytest.mark.parametrize("url", ["https://h:99999/x", "https://h:abc/x", "https://[::1", "https://?x", "https://[[]@"])
def test_a_dead_letter_of_an_unreadable_url_has_no_origin(url):
    """Regression: the dead letter of such a URL raised, so every micro-batch of the retry lane failed until the row was mended.

    The CHECK of the table admits these URLs, and the snapshot quarantines their endpoint.
    """
    delivery = builders.delivery(endpoint=builders.endpoint(url=url, fault="a refused URL"))
    *_, (topic, _, letter) = written(outcomes=[Outcome(delivery, OutcomeKind.DEAD_LETTERED, reason="expired")])
    assert (topic, letter["reason"], letter["url_origin"]) == ("dead", "expired", "")


def test_a_failed_attempt_has_its_headers_in_both_topics():
    failed = response_headers.attach(attempt(1, "server_error"), {"server": "nginx"})
    ended = (failed, attempt(2, "timeout"))
    (_, _, row), (_, _, letter) = written(outcomes=[Outcome(builders.delivery(), OutcomeKind.DEAD_LETTERED, ended, "timeout")])
    for shown in (row["entries"], letter["attempts"]):
        assert [attempt.get("response_headers", "left out") for attempt in shown] == [{"server": "nginx"}, "left out"]
    batch = archive.batch_outcome()
    batch = batch._replace(outcome=batch.outcome._replace(attempts=(failed,)))
    (_, _, row), *letters = written(batches=[batch])
    assert {str(attempt["response_headers"]) for _, _, letter in letters for attempt in letter["attempts"]} == {
        "{'server': 'nginx'}"
    }
    assert row["entries"][0]["response_headers"] == {"server": "nginx"}


def test_a_failed_attempt_has_the_body_of_its_response_in_the_log():
    failed = response_headers.attach(attempt(1, "server_error"), {}, "no: ***")
    accepted = attempt(2, None)
    [(_, _, row)] = written(outcomes=[Outcome(builders.delivery(), OutcomeKind.DELIVERED, (failed, accepted))])
    assert [entry.get("response", "left out") for entry in row["entries"]] == ["no: ***", "left out"]
    batch = archive.batch_outcome()
    batch = batch._replace(outcome=batch.outcome._replace(attempts=(failed,)))
    (_, _, row), *_ = written(batches=[batch])
    assert row["entries"][0]["response"] == "no: ***"


def test_a_dead_letter_counts_its_omitted_attempts():
    """A retry entry keeps the last ten attempts. A dead letter did not say that there were more."""
    kept, last = tuple(attempt(number, "timeout") for number in range(5, 15)), (attempt(15, "timeout"),)
    outcome = Outcome(builders.delivery(), OutcomeKind.DEAD_LETTERED, last, "timeout", earlier=kept)
    *_, (_, _, letter) = written(outcomes=[outcome])
    assert (letter["attempts_omitted"], len(letter["attempts"])) == (4, 11)
    *_, (_, _, whole) = written(outcomes=[outcome._replace(earlier=(), attempts=(attempt(1, "timeout"),))])
    assert whole["attempts_omitted"] == 0


@pytest.mark.parametrize("kept", [50, 10], ids=["all in a fast lane", "the last ten of the retry lane"])
def test_a_dead_letter_of_the_largest_event_fits_into_kafka(kept):
    """Regression: 50 attempts in a fast lane with hostile responses made 1.35 MB, which no topic takes by default."""
    event = builders.event(data=b"x" * 700_000)
    hostile = [
        response_headers.attach(attempt(number, "server_error", response=bytes(5_000_000)), {"server": '"' * 1000})
        for number in range(51 - kept, 51)
    ]
    outcome = Outcome(builders.delivery(event=event), OutcomeKind.DEAD_LETTERED, tuple(hostile), "server_error")
    *_, row = topic_rows.rows(Results(outcomes=[outcome]), TOPICS, now_ms=NOW_MS)
    letter = dead_letter_records.decode(row.value)
    assert len(row.value) < 1024 * 1024 - 4096  # Kafka's default, less the key and the frame of a record
    assert letter.payload() == event.data
    assert [found.attempt for found in letter.attempts] == list(range(letter.attempts_omitted + 1, 51))
    assert len(letter.attempts) >= 10


def test_a_delivery_given_up_unattempted_is_in_the_log():
    outcome = Outcome(delivery=builders.delivery(), kind=OutcomeKind.DEAD_LETTERED, reason="lane_deadline")
    (logged_in, _, row), (topic, _, letter) = written(outcomes=[outcome])
    assert (logged_in, [(entry["kind"], entry["reason"]) for entry in row["entries"]]) == (
        "attempts", [("dead_lettered", "lane_deadline")],
    )  # fmt: skip
    assert (topic, letter["reason"], letter["attempts"], letter["attempts_omitted"]) == ("dead", "lane_deadline", [], 0)


def test_a_rejected_record_keeps_its_bytes_for_the_operator():
    rejection = intake.Rejection(record=builders.record(value=b"\xff{"), reason="not_json", detail="why")
    [(topic, _, entry)] = written(rejections=[rejection])
    assert (topic, entry["reason"], base64.b64decode(entry["value_base64"])) == ("rejected", "not_json", b"\xff{")


def test_a_large_rejected_record_is_cut_and_keeps_its_length():
    rejection = intake.Rejection(record=builders.record(value=b"x" * 5_000_000), reason="too_large", detail="why")
    [(_, _, entry)] = written(rejections=[rejection])
    assert (entry["value_bytes"], len(base64.b64decode(entry["value_base64"]))) == (5_000_000, topic_rows.MAX_REJECTED_BYTES)


def test_the_headers_of_a_large_rejected_record_are_cut():
    headers = (("small", b"x"), ("large", b"x" * 900_000))
    rejection = intake.Rejection(record=builders.record(headers=headers), reason="too_large", detail="")
    [(_, _, entry)] = written(rejections=[rejection])
    assert entry["headers"] == [{"name": "small", "value_base64": base64.b64encode(b"x").decode()}]


def test_the_detail_of_a_rejected_record_is_cut():
    """Regression: a detail that quoted a value made a record that Kafka refuses, and the lane stopped for all customers."""
    rejection = intake.Rejection(record=builders.record(), reason="bad_frame", detail="0123456789" * 200_000)
    [(_, _, entry)] = written(rejections=[rejection])
    assert entry["detail"] == "0123456789" * (topic_rows.MAX_DETAIL_CHARS // 10)


def test_a_rejected_tombstone_has_no_value():
    [(_, _, entry)] = written(rejections=[intake.Rejection(record=builders.record(value=None), reason="tombstone", detail="")])
    assert entry["value_base64"] is None


@pytest.mark.parametrize(("is_confirmed", "field"), [(False, {"unconfirmed": True}), (True, {})])
def test_a_receipt_says_if_its_results_are_not_confirmed(is_confirmed, field):
    """Regression: the real-time lane could not tell its own receipts from those of the direct lane, and used both."""
    receipt = dataclasses.replace(written_topics.receipt(0, 9, due=0), is_confirmed=is_confirmed)
    [(_, _, row)] = written(receipts=[receipt])
    assert {name: value for name, value in row.items() if name == "unconfirmed"} == field
