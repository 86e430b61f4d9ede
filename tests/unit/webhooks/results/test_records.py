"""The records of the topics: their bytes do not change, and records of any version can be read."""

import base64
import gzip
import zipfile
from pathlib import Path

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.webhooks.results import dead_letter_records, log_records, rejected_records, topic_rows
from delivery.webhooks.results.log_entries import AttemptEntry, BatchAttemptEntry, Due, PostponedEntry, RedrivenEntry
from delivery.webhooks.retries import retry_messages
from tests.support import record_samples, records
from tests.support.golden import LEFT

HERE = Path(__file__).parent
WRITTEN = orjson.loads(gzip.decompress((HERE / "data" / "records.json.gz").read_bytes()))
TOPICS = topic_rows.Topics(attempts="attempts", dead_letters="dead", rejected="rejected", retries="retries")
CODECS = {
    "attempts": (log_records.decode, log_records.encode),
    "dead": (dead_letter_records.decode, dead_letter_records.encode),
    "rejected": (rejected_records.decode, rejected_records.encode),
    "retries": (retry_messages.message, retry_messages.encoded),
}
TEXTS = st.text(max_size=20)
INTEGERS, NUMBERS = st.integers(-(2**53), 2**53), st.floats(-1e15, 1e15)
FIELDS = {
    str: TEXTS,
    int: INTEGERS,
    float: NUMBERS,
    str | None: st.none() | TEXTS,
    int | None: st.none() | INTEGERS,
    float | None: st.none() | NUMBERS,
}
TYPES = [
    *log_records.ENTRY_TYPES,
    log_records.OffsetReceipt,
    dead_letter_records.DeadLetter,
    rejected_records.RejectedRecord,
]


@pytest.mark.parametrize("seed", record_samples.SEEDS)
def test_the_bytes_of_sample_results_do_not_change(seed):
    rows = topic_rows.rows(record_samples.results(seed), TOPICS, now_ms=record_samples.NOW_MS)
    made = [[row.topic, row.key.decode(), row.value.decode()] for row in rows]
    assert made == WRITTEN[str(seed)]


def test_samples_hold_every_type_of_record():
    """A type without a sample would leave its bytes untested above."""
    written = [(topic, value.encode()) for made in WRITTEN.values() for topic, _, value in made]
    found = [log_records.decode(value) for topic, value in written if topic == "attempts"]
    seen = {type(entry) for record in found if isinstance(record, log_records.LogRecord) for entry in record.entries}
    assert seen == {*log_records.ENTRY_TYPES} - {RedrivenEntry}  # which only a redrive writes
    assert {topic for topic, _ in written} == {"attempts", "dead", "rejected"}


def test_records_read_and_written_again_are_the_same_bytes():
    for topic, _, value in (row for made in WRITTEN.values() for row in made):
        decode, encode = CODECS[topic]
        assert encode(decode(value.encode())).decode() == value


@pytest.mark.parametrize("path", sorted((HERE.parents[2] / "e2e" / "data").glob("*.zip")), ids=lambda path: path.stem)
def test_records_of_an_earlier_version_can_be_read(path):
    """Reading and writing adds the fields that the earlier version did not write, and changes nothing else."""
    with zipfile.ZipFile(path) as archive:
        topics = orjson.loads(archive.read(LEFT))["topics"]
    read = 0
    for name, written in topics.items():
        if name.split("-")[0] not in CODECS:
            continue
        decode, encode = CODECS[name.split("-")[0]]
        for value in (base64.b64decode(value) for _, value, *_ in written if value is not None):
            again = encode(decode(value))
            read += 1
            assert decode(again) == decode(value)
            if not name.startswith("retries"):  # positional: a newer field is one more place
                assert again == value
    assert read > 10


@st.composite
def made(draw):
    """Draw a record of any type with any values."""
    type_ = draw(st.sampled_from(TYPES))
    drawn = {field.name: draw(FIELDS[field.type]) for field in msgspec.structs.fields(type_) if field.type in FIELDS}
    return records.entry(type_, **drawn)


@given(made())
def test_any_record_is_json_in_the_order_of_its_fields(record):
    """The bytes equal those of orjson, which wrote the records before they had types."""
    tag = record.__struct_config__.tag
    kind = {} if tag is None else {"kind": tag}
    fields = {name: value for name in record.__struct_fields__ if (value := getattr(record, name)) is not msgspec.UNSET}
    written = msgspec.json.encode(record)
    assert written == orjson.dumps(kind | fields)
    assert msgspec.json.decode(written, type=type(record)) == record


def test_fields_and_kinds_of_a_newer_version_are_ignored():
    entries = [records.entry(AttemptEntry, offset=offset) for offset in (1, 2)]
    document = orjson.loads(log_records.encode(records.log(*entries)))
    document["entries"][0]["news"] = {"a": 1}
    document["news"] = 1
    document["entries"].insert(1, {"kind": "of_a_later_version"})
    assert log_records.decode(orjson.dumps(document)) == records.log(*entries)
    assert log_records.decode(b'{"kind":"of_a_later_version"}') is None
    letter = orjson.loads(dead_letter_records.encode(records.dead_letter())) | {"news": 1}
    assert dead_letter_records.decode_with_document(orjson.dumps(letter)) == (records.dead_letter(), letter)


@pytest.mark.parametrize(
    "written",
    [
        b"", b"\xff", b"[]", b"{}", b'{"kind":1}', b'{"kind":"receipt"}', b'{"kind":"outcomes","endpoint_id":"e"}',
        b'{"kind":"outcomes","endpoint_id":"e","customer_id":"c","entries":[{"kind":"attempt"}]}',
        b'{"kind":"outcomes","endpoint_id":"e","customer_id":"c","entries":[{"kind":"later"},{"kind":"attempt"}]}',
        b'{"kind":"outcomes","endpoint_id":"e","customer_id":"c","entries":[{}]}',
    ],
)  # fmt: skip
def test_a_record_that_the_job_did_not_write_is_refused(written):
    with pytest.raises(msgspec.MsgspecError):
        log_records.decode(written)


UNKNOWN_ENTRY = b'{"kind":"outcomes","endpoint_id":"e","customer_id":"c","entries":[{"kind":"of_a_later_version"}]}'


@pytest.mark.parametrize("added", [b'"customer_id":"\xff","detail":"\xff"', b'"news":' + b"[" * 100_000 + b"]" * 100_000])
@pytest.mark.parametrize(
    ("decode", "written"),
    [
        (log_records.decode, log_records.encode(records.log())),
        (log_records.decode, UNKNOWN_ENTRY),
        (dead_letter_records.decode, dead_letter_records.encode(records.dead_letter())),
        (dead_letter_records.decode_with_document, dead_letter_records.encode(records.dead_letter())),
        (rejected_records.decode, rejected_records.encode(records.entry(rejected_records.RejectedRecord, reason="not_json"))),
    ],
)
def test_a_record_with_broken_text_or_of_many_levels_is_refused(decode, written, added):
    """Regression: such a record of another program raised UnicodeDecodeError or RecursionError, which callers did not expect.

    It stopped every redrive, and many levels ended `fanout archive` at each start.
    """
    with pytest.raises(msgspec.DecodeError):
        decode(written[:-1] + b"," + added + b"}")


def test_fields_that_older_versions_did_not_write_have_defaults():
    def older(record, *missing):
        document = orjson.loads(msgspec.json.encode(record))
        return orjson.dumps({name: value for name, value in document.items() if name not in missing})

    log = log_records.decode(older(records.log(), "mode"))
    assert log == records.log(mode="direct")
    letter = dead_letter_records.decode(older(records.dead_letter(attempts_omitted=3), "attempts_omitted"))
    assert letter.attempts_omitted == 0
    entry = records.entry(AttemptEntry, retry_after_s=3.0)
    assert msgspec.json.decode(older(entry, "retry_after_s"), type=AttemptEntry).retry_after_s is None


def test_entries_of_all_kinds_name_a_delivery_alike():
    offsets = {"s1": {"t": {"0": [1, 2], "3": [1]}}, "s2": {"t": {"0": [2]}}}
    batch = records.entry(BatchAttemptEntry, offsets=offsets, rejected={"s1": {"t": {"0": [2]}}})
    assert list(batch.due()) == [Due("t", 0, 1, "s1"), Due("t", 0, 2, "s1"), Due("t", 3, 1, "s1"), Due("t", 0, 2, "s2")]
    assert list(batch.accepted()) == [Due("t", 0, 1, "s1"), Due("t", 3, 1, "s1"), Due("t", 0, 2, "s2")]
    single = records.entry(PostponedEntry, topic="t", offset=1, subscription_id="s1", reason="ordered")
    assert list(single.due()) == [Due("t", 0, 1, "s1")]
