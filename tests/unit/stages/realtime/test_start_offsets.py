"""The real-time lane starts with all of its offset receipts, or waits for Kafka. It keeps the positions of moved topics."""

import json
from pathlib import Path
from types import SimpleNamespace

import confluent_kafka
import msgspec
import pytest
from confluent_kafka import KafkaError

from delivery import errors
from delivery.config import plan_builder, settings
from delivery.stages.kafka import completed_reader
from delivery.stages.realtime import start_offsets
from tests.support import records

ASKED = completed_reader.CompletedWork(client={}, topics=plan_builder.plan_of(settings.Settings()).topics, since_ms=0)


def message(value=None, error=None):
    return SimpleNamespace(value=lambda: value, error=lambda: error, timestamp=lambda: (0, 7))


def receipt(first, last, **fields):
    fields |= {"lane": "direct", "topic": "t", "partition": 0, "first_offset": first, "last_offset": last}
    return message(msgspec.json.encode(records.receipt(**fields)))


FAILED = message(error=KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
STOPPED = errors.KafkaUnavailable("not read to its end")


@pytest.fixture
def receipts(monkeypatch):
    """Read receipts from an attempts topic that gives `tries`: for each read its messages, and an error that ends the read."""
    monkeypatch.setattr(confluent_kafka, "Consumer", lambda _: SimpleNamespace(close=lambda: None))

    def read(*tries):
        left = list(tries)

        def messages(*_, **__):
            for step in left.pop(0):
                if isinstance(step, Exception):
                    raise step
                yield step

        monkeypatch.setattr(completed_reader, "messages", messages)
        return start_offsets._receipts_patiently(ASKED, lambda _: True, start_offsets.ReceiptBounds(retry_s=0.0))

    return read


@pytest.mark.parametrize(
    "tries",
    [[[receipt(0, 4), FAILED]] * start_offsets.TRIES, [[receipt(0, 4), STOPPED]]],
    ids=["a partition fails", "kafka stops"],
)
def test_a_part_of_the_receipts_starts_no_lane(receipts, tries):
    """Regression: the lane started with the receipts that it had read, and repeated the deliveries of all others."""
    with pytest.raises(errors.KafkaUnavailable, match="The lane does not start without them"):
        receipts(*tries)


def test_receipts_that_could_not_be_read_once_are_read_again(receipts):
    assert receipts([receipt(0, 4), FAILED], [receipt(0, 4), receipt(5, 9)]) == ({("t", 0): [(0, 4), (5, 9)]}, 7)


def test_a_receipt_of_the_direct_lane_does_not_move_the_start(receipts):
    """Regression: after a topic moved, its records were skipped whose results the direct lane had not written.

    The direct lane writes receipts together with results. Its task had ended before Kafka confirmed all of them.
    """
    assert receipts([receipt(0, 4), receipt(5, 9, unconfirmed=True)]) == ({("t", 0): [(0, 4)]}, 7)


def test_a_topic_that_kafka_refuses_to_describe_starts_no_lane(monkeypatch):
    """Regression: the topic counted as deleted, so the lane started at its first record and repeated its deliveries."""
    refused = SimpleNamespace(error=KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), partitions={})
    consumer = SimpleNamespace(close=lambda: None, list_topics=lambda *_: SimpleNamespace(topics={"t": refused}))
    monkeypatch.setattr(confluent_kafka, "Consumer", lambda _: consumer)
    with pytest.raises(errors.KafkaUnavailable, match="Lane realtime does not start without it"):
        start_offsets._starts_of_newer(ASKED, {("t", 0): [start_offsets.HandledRange(0, 4)]}, completed_reader.BOUNDS)


class HadoopFiles:
    """The calls of Hadoop's file system that read a checkpoint, on local files. The JVM's `Path` creates one for a name."""

    def __init__(self, name):
        self.path = Path(name)
        self.getFileSystem = lambda _: self
        self.getName = lambda: self.path.name

    def exists(self, file):
        return file.path.exists()

    def getFileStatus(self, file):  # noqa: N802  # Java's name
        return SimpleNamespace(getModificationTime=lambda: file.path.stat().st_mtime * 1000)

    def listStatus(self, folder):  # noqa: N802  # Java's name
        return [SimpleNamespace(getPath=lambda path=path: HadoopFiles(path)) for path in folder.path.iterdir()]

    def open(self, file):
        return SimpleNamespace(close=lambda: None, text=file.path.read_text())


@pytest.fixture
def spark():
    """A Spark session that can only read files."""
    apache = SimpleNamespace(
        hadoop=SimpleNamespace(fs=SimpleNamespace(Path=HadoopFiles)),
        commons=SimpleNamespace(io=SimpleNamespace(IOUtils=SimpleNamespace(toString=lambda stream, _: stream.text))),
    )
    jvm = SimpleNamespace(org=SimpleNamespace(apache=apache))
    java = SimpleNamespace(hadoopConfiguration=lambda: None)
    return SimpleNamespace(sparkContext=SimpleNamespace(_jvm=jvm, _jsc=java))


@pytest.fixture
def lane(tmp_path, monkeypatch):
    """The folder of a lane whose first start is done, beside the first offset 5 of a moved topic. No result is in Kafka."""
    (tmp_path / start_offsets.INITIAL_POSITIONS_FILE).write_text(json.dumps({"moved": {"0": 5}}))
    folder = tmp_path / "realtime"
    folder.mkdir()
    (folder / "metadata").write_text('{"id":"1"}')
    monkeypatch.setattr(start_offsets, "_receipts_patiently", lambda *_: ({}, 0))
    monkeypatch.setattr(completed_reader, "read", lambda *_: frozenset())
    return folder


@pytest.mark.parametrize("has_read", [False, True], ids=["Kafka was away", "Kafka answered"])
def test_a_first_start_ends_when_spark_has_the_first_offsets(spark, lane, has_read):
    """Regression: a first start that ended before Kafka answered made the next start skip all records up to then.

    Spark had written only `metadata`, so the lane took itself for one that had started, and Spark began at `latest`.
    """
    if has_read:
        (lane / "sources" / "0").mkdir(parents=True)
        (lane / "sources" / "0" / "0").write_text('v1\n{"moved":{"0":0}}')
    start = start_offsets.read(spark, settings.Settings(), str(lane))
    assert (start.next_offsets, start.is_first) == ({("moved", 0): 5}, not has_read)


def test_receipts_are_read_from_a_time_that_a_copy_of_the_folder_keeps(spark, lane, monkeypatch):
    """Regression: the time was that of the file commits/N. In a copy it was that of the copy, and deliveries were repeated."""
    asked = []
    monkeypatch.setattr(start_offsets, "_receipts_patiently", lambda of, *_: (asked.append(of.since_ms), ({}, 0))[1])
    texts = {"offsets": 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1234567}\n{"moved":{"0":9}}', "commits": "v1\n{}"}
    for part, text in texts.items():
        (lane / part).mkdir()
        (lane / part / "3").write_text(text)
    start = start_offsets.read(spark, settings.Settings(), str(lane))
    assert (asked, start.next_offsets) == ([1234567], {("moved", 0): 9})
