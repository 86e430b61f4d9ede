"""The commands `fanout rejected …` on a real Kafka: rejected records are found, shown and published again."""

import orjson
import pytest
from confluent_kafka import TopicPartition
from typer.testing import CliRunner

from delivery import errors
from delivery.config import kafka_clients
from delivery.webhooks.leases import lease_report
from delivery.webhooks.routing import intake
from fanout.cli import main
from fanout.kafka import publishing
from fanout.redrive import rejected_search
from tests.integration.test_dead_letters import Platform
from tests.support import builders

pytestmark = pytest.mark.integration


@pytest.fixture
def platform(kafka, tmp_path):
    return Platform(kafka, tmp_path)


def publish(platform, count):
    platform.publish(
        *(
            publishing.Message(
                topic=platform.events, key=f"k{n}".encode(), value=b'{"id": "e%d"}' % n, headers=(("trace", b"t%d" % n),)
            )
            for n in range(count)
        )
    )


def rejected(platform, offset, reason="unknown_tenant", **fields):
    record = builders.record(topic=platform.events, partition=0, offset=offset, value=b'{"id": "e%d"}' % offset, **fields)
    return intake.Rejection(record=record, reason=reason, detail="tenant 't9' is not registered")


def records(platform):
    read = sorted(platform.read(platform.events), key=lambda message: message.offset())
    return [(message.key(), message.value(), message.headers()) for message in read]


def test_rejected_records_are_listed_newest_first_and_shown(platform):
    platform.write(rejections=[rejected(platform, 1)])
    platform.write(rejections=[rejected(platform, 2, "not_json", headers=(("trace", b"t\x1b"),))])
    newest, oldest = platform.run_json("rejected", "list")
    assert [(row["reason"], row["offset"]) for row in (newest, oldest)] == [("not_json", 2), ("unknown_tenant", 1)]
    assert "value_base64" not in newest
    assert [row["offset"] for row in platform.run_json("rejected", "list", "--reason", "unknown_tenant")] == [1]
    assert platform.run_json("rejected", "list", "--since", "1h", "--until", "30m") == []
    assert platform.run_json("rejected", "list", "--topic", "another") == []

    shown = platform.run("rejected", "show", newest["rejected"])
    assert '{"id": "e2"}' in shown
    assert "header trace" in shown
    assert "\x1b" not in shown
    assert platform.run_json("rejected", "show", f"rejected/{oldest['rejected']}")["reason"] == "unknown_tenant"


@pytest.mark.parametrize("name", ["0:99", "9:0", "no-name"])
def test_a_rejected_record_that_is_not_there_is_named(platform, name):
    with rejected_search.reading(platform.config) as reader, pytest.raises(errors.SettingsError, match=name):
        reader.get(name)


def test_selected_records_are_republished_as_they_were_and_in_order(platform):
    publish(platform, 4)
    platform.write(
        rejections=[
            rejected(platform, 3),
            rejected(platform, 1),
            rejected(platform, 1),  # by another lane
            rejected(platform, 2, "not_json"),
        ]
    )
    before = records(platform)
    selected = ("rejected", "republish", "--reason", "unknown_tenant")
    expected = {"records": 2, "expired": 0, "no_topic": 0, "topics": {platform.events: 2}}
    assert platform.run_json(*selected, "--dry-run") == expected | {"dry_run": True}
    assert records(platform) == before

    assert platform.run_json(*selected) == expected | {"dry_run": False}
    assert records(platform) == [*before, before[1], before[3]]


def test_records_that_kafka_no_longer_has_are_counted_and_left_out(platform):
    publish(platform, 3)
    with_admin = kafka_clients.admin(platform.config.kafka)
    [deleted] = with_admin.delete_records([TopicPartition(platform.events, 0, 2)]).values()
    deleted.result(30)
    of_retry_lane = builders.record(topic=lease_report.NO_TOPIC, partition=-1, offset=-1)
    platform.write(
        rejections=[
            *(rejected(platform, offset) for offset in range(3)),
            intake.Rejection(record=of_retry_lane, reason="unreadable", detail="", is_only_copy=True),
        ]
    )
    summary = platform.run_json("rejected", "republish", "--all")
    assert (summary["records"], summary["expired"], summary["no_topic"]) == (1, 2, 1)
    assert [orjson.loads(value)["id"] for _, value, _ in records(platform)] == ["e2", "e2"]


def test_a_foreign_record_in_the_rejected_topic_is_named_by_place(platform):
    platform.publish(publishing.Message(topic=platform.topics.rejected, value=b"[1]"))
    with (
        rejected_search.reading(platform.config) as reader,
        pytest.raises(errors.RecordUnreadable, match=rf"{platform.topics.rejected}:\d:0 is not one"),
    ):
        rejected_search.find(reader, rejected_search.RejectedSelection(), 1)


def test_a_republication_without_selection_is_refused():
    result = CliRunner().invoke(main.app, ["rejected", "republish"])
    assert str(result.exception).startswith("no rejected records are selected, and nothing was republished")


def test_a_missing_rejected_topic_is_named(platform):
    config = platform.config.model_copy(
        update={"delivery": platform.config.delivery.model_copy(update={"rejected_topic": "nobody-made-it"})}
    )
    with pytest.raises(errors.SettingsError, match="topic nobody-made-it on"), rejected_search.reading(config):
        pass
