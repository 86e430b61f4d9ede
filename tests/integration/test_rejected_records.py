"""The commands `fanout rejected …` on a real Kafka: rejected records are found and shown."""

import orjson
import pytest

from delivery import errors
from delivery.webhooks.routing import intake
from fanout.kafka import publishing
from fanout.redrive import rejected_search
from fanout.redrive.selection import RejectedSelection
from tests.integration.test_dead_letters import Platform
from tests.support import builders

pytestmark = pytest.mark.integration


@pytest.fixture
def platform(kafka, tmp_path):
    return Platform(kafka, tmp_path)


def rejected(platform, offset, reason="unknown_tenant", **fields):
    record = builders.record(topic=platform.events, partition=0, offset=offset, **{"value": b'{"id": "e%d"}' % offset} | fields)
    return intake.Rejection(record=record, reason=reason, detail="tenant 't9' is not registered")


def test_rejected_records_are_listed_from_the_newest_on(platform):
    platform.write(rejections=[rejected(platform, 1)])
    platform.write(rejections=[rejected(platform, 2, "not_json")])
    rows = platform.run_json("rejected", "list")
    assert [(row["reason"], row["offset"]) for row in rows] == [("not_json", 2), ("unknown_tenant", 1)]
    assert not {"value_base64", "headers"} & rows[0].keys()
    assert platform.run_json("rejected", "list", "--limit", "1") == rows[:1]
    for selected, offsets in (
        (("--reason", "unknown_tenant"), [1]),
        (("--topic", platform.events), [2, 1]),
        (("--topic", "another"), []),
        (("--since", "1h"), [2, 1]),
        (("--since", "2h", "--until", "1h"), []),
    ):
        assert [row["offset"] for row in platform.run_json("rejected", "list", *selected)] == offsets


def test_a_rejected_record_is_shown_with_its_headers_and_value(platform):
    headers = (("trace", b"t\x1b"), ("sent_ms", b"1"), ("sent_ms", b"2"))
    of_microseconds = 1_790_000_000_000_000  # as a producer may set it
    platform.write(
        rejections=[
            rejected(platform, 1, headers=headers, appended_at_ms=of_microseconds),
            rejected(platform, 2, value=None),
        ]
    )
    tombstone, whole = platform.run_json("rejected", "list")
    shown = platform.run("rejected", "show", f"rejected/{whole['rejected']}")
    for part in ('{"id": "e1"}', "header trace", "header sent_ms", f"{of_microseconds} ms since 1970", "is not registered"):
        assert part in shown
    assert (shown.count("header sent_ms"), "\x1b" in shown) == (2, False)
    assert "a tombstone" in platform.run("rejected", "show", tombstone["rejected"])
    assert platform.run_json("rejected", "show", whole["rejected"])["value_bytes"] == len('{"id": "e1"}')


def test_a_value_of_another_program_that_is_not_base64_is_shown_as_it_is(platform):
    platform.write(rejections=[rejected(platform, 1)])
    [written] = platform.read(platform.topics.rejected)
    foreign = orjson.dumps(orjson.loads(written.value()) | {"value_base64": "no base64"})
    platform.publish(publishing.Message(topic=platform.topics.rejected, key=written.key(), value=foreign))
    assert "no base64" in platform.run("rejected", "show", platform.run_json("rejected", "list")[0]["rejected"])


@pytest.mark.parametrize("name", ["0:99", "9:0", "no-name"])
def test_a_rejected_record_that_is_not_there_is_named(platform, name):
    with rejected_search.reading(platform.config) as reader, pytest.raises(errors.SettingsError, match=name):
        reader.get(name)


def test_a_foreign_record_in_the_rejected_topic_is_named_by_place(platform):
    platform.publish(publishing.Message(topic=platform.topics.rejected, value=b"[1]"))
    with (
        rejected_search.reading(platform.config) as reader,
        pytest.raises(errors.RecordUnreadable, match=rf"{platform.topics.rejected}:\d:0 is not one"),
    ):
        rejected_search.find(reader, RejectedSelection(), 1)


def test_a_missing_rejected_topic_is_named(platform):
    config = platform.config.model_copy(
        update={"delivery": platform.config.delivery.model_copy(update={"rejected_topic": "nobody-made-it"})}
    )
    with pytest.raises(errors.SettingsError, match="topic nobody-made-it on"), rejected_search.reading(config):
        pass
