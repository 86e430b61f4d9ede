"""The commands `fanout dead-letters` and `fanout reconcile` on a real Kafka: their input, their records, their output."""

import contextlib
import time
import uuid

import orjson
import pytest
from typer.testing import CliRunner

from delivery import errors
from delivery.config import settings
from delivery.model import NextAttempt, Outcome, OutcomeKind
from delivery.registry_model import DeliveryMode, Revision
from delivery.stages.kafka import topics
from delivery.webhooks.batching import segment
from delivery.webhooks.results import topic_rows
from delivery.webhooks.results.task_results import Results
from delivery.webhooks.retries import retry_messages
from delivery.webhooks.routing import intake
from delivery.webhooks.sending import payload
from fanout.cli import main
from fanout.kafka import publishing, topic_scanner
from fanout.reconcile import proving
from fanout.redrive import dead_letter_search, enqueue, redrive_plan
from fanout.redrive.selection import Selection
from tests.support import builders
from tests.unit.fanout.reconcile.test_ledger import attempt, batch

pytestmark = pytest.mark.integration

DELIVERED = (attempt(),)
FAILED = (attempt(1, "server_error"), attempt(2, "timeout"))


class Platform:
    """Topics for one test, with the records that the job would have written."""

    def __init__(self, kafka, folder):
        name = uuid.uuid4().hex[:8]
        self.events = f"{name}.order"
        self.document = {
            "kafka": {"bootstrap_servers": kafka.bootstrap_servers},
            "source": {"topic_pattern": f"{name}\\..+", "topic_prefix": f"{name}."},
            "delivery": {
                "attempts_topic": f"attempts-{name}",
                "dead_letter_topic": f"dead-{name}",
                "rejected_topic": f"rejected-{name}",
                "retries_topic": f"retries-{name}",
            },
        }
        self.config = settings.Settings.model_validate(self.document)
        self._file = folder / "fanout.toml"
        lines = []
        for area, fields in self.document.items():
            lines += [f"[{area}]", *(f"{key} = '{value}'" for key, value in fields.items())]
        self._file.write_text("\n".join(lines))
        delivery = self.config.delivery
        self.topics = topic_rows.Topics(
            attempts=delivery.attempts_topic, dead_letters=delivery.dead_letter_topic,
            rejected=delivery.rejected_topic, retries=delivery.retries_topic,
        )  # fmt: skip
        topics.ensure(self.config.kafka, {*topics.of_results(delivery), delivery.retries_topic}, 3)
        topics.ensure(self.config.kafka, [self.events], 1)

    def publish(self, *messages):
        publisher = publishing.Publisher(self.config.kafka)
        for message in messages:
            publisher.publish(message)
        publisher.flush()

    def publish_events(self, count):
        documents = [{"id": f"e{n}", "tenant_id": "t1"} for n in range(count)]
        self.publish(*(publishing.Message(topic=self.events, value=orjson.dumps(document)) for document in documents))

    def write(self, *outcomes, without=(), **results):
        made = topic_rows.rows(Results(outcomes=list(outcomes), **results), self.topics, now_ms=round(time.time() * 1000))
        self.publish(*(publishing.Message(topic=r.topic, key=r.key, value=r.value) for r in made if r.topic not in without))

    def outcome(self, offset, kind=OutcomeKind.DELIVERED, *, attempts=DELIVERED, endpoint="ep1", **fields):
        event = builders.event(
            event_id=f"e{offset}", data=b'{ "n": %d }' % offset,
            record=builders.record(topic=self.events, partition=0, offset=offset),
        )  # fmt: skip
        return Outcome(builders.delivery(event=event, endpoint=builders.endpoint(endpoint)), kind, attempts, **fields)

    def dead(self, offset, endpoint="ep1"):
        return self.outcome(offset, OutcomeKind.DEAD_LETTERED, attempts=FAILED, endpoint=endpoint, reason="timeout")

    def receipt(self, last, *, due):
        return intake.Receipt(
            lane=DeliveryMode.DIRECT, topic=self.events, partition=0, revision=Revision(1),
            first_offset=0, last_offset=last, records=last + 1, due=due,
        )  # fmt: skip

    def read(self, topic):
        read = []
        with contextlib.closing(topic_scanner.Scanner(self.config.kafka)) as scanner:
            scanner.read(scanner.extents([topic]), topic, read.append)
        return read

    def run(self, *arguments, code=0):
        result = CliRunner().invoke(main.app, ["--config", str(self._file), *arguments])
        assert result.exit_code == code, (result.output, result.exception)
        return result.stdout

    def run_json(self, *arguments, code=0):
        return orjson.loads(self.run(*arguments, "--json", code=code))


@pytest.fixture
def platform(kafka, tmp_path):
    return Platform(kafka, tmp_path)


def test_dead_letters_are_listed_shown_and_exported(platform, tmp_path):
    platform.write(*[platform.dead(offset, f"ep{offset % 2}") for offset in range(6)])
    listed = platform.run_json("dead-letters", "list", "--endpoint", "ep1", "--limit", "2")
    assert [(row["endpoint_id"], row["reason"], row["attempts"]) for row in listed] == [("ep1", "timeout", 2)] * 2
    assert platform.run_json("dead-letters", "list", "--type", "user.*") == []
    assert platform.run_json("dead-letters", "list", "--since", "1h", "--until", "2000-01-01") == []
    assert "timeout" in platform.run("dead-letters", "list")

    shown = platform.run_json("dead-letters", "show", listed[0]["letter"])
    assert (shown["event_id"], shown["redriven"]) == (listed[0]["event_id"], False)
    assert platform.run_json("dead-letters", "show", shown["webhook_id"])["letter"] == listed[0]["letter"]
    assert '{ "n": ' in platform.run("dead-letters", "show", listed[0]["letter"])

    file = tmp_path / "letters.ndjson"
    platform.run("dead-letters", "export", str(file), "--endpoint", "ep0")
    exported = [orjson.loads(line) for line in file.read_bytes().splitlines()]
    assert [letter["event_id"] for letter in exported] == ["e0", "e2", "e4"]
    assert platform.run("dead-letters", "export", "-", "--limit", "1").count("\n") == 1
    assert list(file.parent.glob("*.part")) == []
    assert platform.run("dead-letters", "export", "/dev/null")


def test_a_redrive_enqueues_each_letter_once_with_its_webhook_id(platform):
    outcomes = [platform.dead(offset, f"ep{offset % 2}") for offset in range(6)]
    platform.write(*outcomes)
    assert platform.run_json("dead-letters", "redrive", "--endpoint", "ep1", "--dry-run")["letters"] == 3
    assert platform.read(platform.topics.retries) == []

    summary = platform.run_json("dead-letters", "redrive", "--endpoint", "ep1")
    assert summary == {"letters": 3, "requests": 3, "redriven_before": 0, "endpoints": {"ep1": 3}, "dry_run": False}
    [record] = platform.read(platform.topics.retries)
    postponed = retry_messages.message(record.value())
    assert (record.key(), postponed.endpoint_id) == (b"ep1", "ep1")
    packed = [(segment.unpacked(entry.packed[0]), entry.subscriptions[0]) for entry in postponed.entries]
    assert [payload.webhook_id(*pair) for pair in packed] == [outcome.delivery.webhook_id for outcome in outcomes[1::2]]
    assert [payload.standard(event) for event, _ in packed] == [outcome.delivery.body for outcome in outcomes[1::2]]

    assert platform.run_json("dead-letters", "redrive", "--endpoint", "ep1")["redriven_before"] == 3
    assert platform.run_json("dead-letters", "redrive", "--all")["endpoints"] == {"ep0": 3}
    assert platform.run_json("dead-letters", "redrive", "--all")["letters"] == 0
    assert all(row["redriven"] for row in platform.run_json("dead-letters", "list"))

    platform.write(platform.dead(1))  # given up again
    assert platform.run_json("dead-letters", "redrive", "--all")["letters"] == 1


def test_a_redrive_that_crashed_before_its_note_is_known_later(platform, monkeypatch):
    platform.write(platform.dead(1), platform.dead(2))
    monkeypatch.setattr(enqueue.Enqueuer, "_flush", lambda enqueuer: enqueuer._publisher.flush())
    with dead_letter_search.reading(platform.config) as reader:
        assert dead_letter_search.redrive(platform.config, reader, Selection()).letters == 2
    monkeypatch.undo()
    assert b"redriven" not in b"".join(row.value() for row in platform.read(platform.topics.attempts))
    assert platform.run_json("dead-letters", "redrive", "--all")["letters"] == 0


def test_a_redrive_that_fails_midway_says_that_some_may_be_redriven(platform, monkeypatch):
    platform.write(platform.dead(1), platform.dead(2))
    with dead_letter_search.reading(platform.config) as reader:
        read, reads = reader.read, []

        def read_and_fail_when_enqueuing(extents, take):
            read(extents, take)
            reads.append(extents)
            if len(reads) == 2:
                raise errors.KafkaUnavailable("the broker is away: check it, then try again")

        monkeypatch.setattr(reader, "read", read_and_fail_when_enqueuing)
        with pytest.raises(errors.KafkaUnavailable, match=r"try again\. Some dead letters may already be redriven"):
            dead_letter_search.redrive(platform.config, reader, Selection())
    assert platform.run_json("dead-letters", "redrive", "--all")["letters"] == 2


@pytest.mark.parametrize("foreign", [b"{", b'{"kind":"outcomes","endpoint_id":"\xff"}', b'{"x":' + b"[" * 100_000])
def test_a_foreign_record_or_note_stops_no_redrive(platform, foreign):
    """Regression: a record of broken UTF-8 in the attempts topic stopped the redrive, and so did any unreadable note."""
    platform.write(platform.dead(1))
    platform.publish(
        publishing.Message(topic=platform.topics.attempts, value=foreign),
        publishing.Message(topic=platform.topics.retries, value=None, headers=((redrive_plan.NOTE, foreign),)),
    )
    assert platform.run_json("dead-letters", "redrive", "--all")["letters"] == 1


def test_a_foreign_dead_letter_without_base64_is_named_before_any_write(platform):
    """Regression: the redrive ended with a traceback in the middle of writing, and `show` with another."""
    written = [
        row
        for row in topic_rows.rows(Results(outcomes=[platform.dead(1)]), platform.topics, now_ms=round(time.time() * 1000))
        if b"payload_base64" in row.value
    ]
    foreign = orjson.dumps(orjson.loads(written[0].value) | {"payload_base64": "no base64!"})
    platform.write(platform.dead(2))
    platform.publish(publishing.Message(topic=platform.topics.dead_letters, key=b"ep1", value=foreign))
    with (
        dead_letter_search.reading(platform.config) as reader,
        pytest.raises(errors.RecordUnreadable, match=r":\d:\d is not one"),
    ):
        dead_letter_search.redrive(platform.config, reader, Selection())
    assert platform.read(platform.topics.retries) == []
    [name] = [row["letter"] for row in platform.run_json("dead-letters", "list") if row["event_id"] == "e1"]
    assert "the payload or a header cannot be shown" in platform.run("dead-letters", "show", name)


def test_dead_letters_of_a_batch_are_redriven_in_one_batch(platform):
    events = [segment.unpacked(segment.item(platform.dead(n).delivery.event, 0).packed) for n in range(3)]
    platform.write(batches=[batch(*events, kind=OutcomeKind.DEAD_LETTERED, attempts=FAILED, reason="timeout")])
    assert platform.run_json("dead-letters", "redrive", "--all")["requests"] == 1
    [record] = platform.read(platform.topics.retries)
    [waiting] = retry_messages.message(record.value()).entries
    assert [segment.unpacked(item).event_id for item in waiting.packed] == ["e0", "e1", "e2"]
    assert waiting.left_by == "redrive"


@pytest.mark.parametrize("topic", ["attempts", "retries", "rejected", "dead_letters"])
def test_a_foreign_record_in_a_result_topic_is_named_by_place(platform, topic):
    """Regression: reconcile named no place of a foreign record in the retries topic, which looks like another version's."""
    name = getattr(platform.topics, topic)
    platform.publish(publishing.Message(topic=name, key=b"21", value=b"[1]"))
    named = rf"{name}:\d:0 is not one that this version of the job writes"
    if topic == "dead_letters":
        with dead_letter_search.reading(platform.config) as reader, pytest.raises(errors.RecordUnreadable, match=named):
            dead_letter_search.find(reader, Selection(), 1)
    with pytest.raises(errors.RecordUnreadable, match=named):
        proving.reconcile(platform.config, settle_s=0)


def test_a_redrive_without_selection_is_refused():
    assert (
        CliRunner().invoke(main.app, ["dead-letters", "redrive"]).exception.args[0].startswith("no dead letters are selected")
    )


# Murmur2 of these keys, from the tests of Kafka's Java client.
@pytest.mark.parametrize(
    ("key", "murmur2"), [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536)]
)
def test_a_key_has_the_partition_that_the_job_gives_it(platform, key, murmur2):
    """All records of an endpoint must be in one partition of the retries topic, because its shard reads them in order."""
    platform.publish(publishing.Message(topic=platform.topics.retries, key=key, value=b"x"))
    [record] = platform.read(platform.topics.retries)
    assert record.partition() == (murmur2 & 0x7FFF_FFFF) % 3


def test_reconcile_finds_missing_and_surplus_deliveries(platform):
    platform.publish_events(4)
    platform.write(platform.outcome(0), platform.dead(1), platform.outcome(2))
    waits = platform.outcome(3, OutcomeKind.POSTPONED, attempts=FAILED, reason="timeout", next_attempt=NextAttempt(2**41, 1))
    platform.write(waits, receipts=[platform.receipt(3, due=4)])
    postponed = topic_rows.deferral_rows(Results(outcomes=[waits]), platform.topics, now_ms=2**41)
    only_counts = topic_rows.TopicRow(platform.topics.retries, b"ep1", None)  # as stands behind a large one

    [finding] = platform.run_json("reconcile", "--settle", "0s", code=1)["findings"]
    assert (finding["kind"], finding["first_offset"], finding["subscription_id"]) == ("not_handed_over", 3, "s1")
    handed_over = [*postponed, only_counts]
    platform.publish(*(publishing.Message(topic=row.topic, key=row.key, value=row.value) for row in handed_over))
    account = platform.run_json("reconcile", "--settle", "0s")
    assert account["holds"]
    direct = account["lanes"]["direct"]
    assert [direct[name] for name in ("due", "delivered", "dead_lettered", "pending")] == [4, 2, 1, 1]
    assert "Everything adds up" in platform.run("reconcile", "--settle", "0s", "--since", "1h")

    platform.run("dead-letters", "redrive", "--all")
    assert platform.run_json("reconcile", "--settle", "0s")["lanes"]["direct"]["pending"] == 2
    platform.write(platform.outcome(1))
    assert platform.run_json("reconcile", "--settle", "0s")["lanes"]["direct"]["delivered"] == 3

    platform.write(platform.dead(2))
    [finding] = platform.run_json("reconcile", "--settle", "0s", code=1)["findings"]
    assert (finding["kind"], finding["first_offset"]) == ("contradiction", 2)
    assert "not everything adds up" in platform.run("reconcile", "--settle", "0s", code=1)


@pytest.mark.parametrize("topic", ["ATTEMPTS", "RETRIES"])
def test_a_redrive_without_a_topic_of_its_notes_is_refused(platform, topic):
    """Regression: dead letters whose notes could not be read were redriven again."""
    result = CliRunner(env={f"FANOUT_DELIVERY_{topic}_TOPIC": "nobody-made-it"}).invoke(
        main.app, ["--config", str(platform._file), "dead-letters", "redrive", "--all"]
    )
    assert "there is no topic nobody-made-it on" in str(result.exception)


@pytest.mark.parametrize("topic", ["ATTEMPTS", "DEAD_LETTER", "REJECTED", "RETRIES"])
def test_a_missing_result_topic_is_named(platform, topic):
    """Regression: a topic that the login may not describe counted as empty, so healthy deliveries were reported as lost."""
    result = CliRunner(env={f"FANOUT_DELIVERY_{topic}_TOPIC": "nobody-made-it"}).invoke(
        main.app, ["--config", str(platform._file), "reconcile"]
    )
    assert "topic nobody-made-it on" in str(result.exception)


def test_a_note_is_in_the_record_of_its_retry_entry(platform):
    platform.write(platform.dead(1))
    platform.run("dead-letters", "redrive", "--all")
    [record] = platform.read(platform.topics.retries)
    [(name, note)] = record.headers()
    assert name == redrive_plan.NOTE
    assert note in [row.value() for row in platform.read(platform.topics.attempts)]
