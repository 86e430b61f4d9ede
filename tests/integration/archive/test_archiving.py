"""`fanout archive` on a real Kafka and a real Postgres archives each record once, also across failures and crashes."""

import contextlib
import datetime as dt
import functools
import os
import signal
import subprocess
import sys
import threading
import time
import uuid

import orjson
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from delivery import errors
from delivery.config import kafka_clients, settings
from delivery.model import OutcomeKind
from delivery.observability import metrics
from delivery.stages.kafka import record_reader, topics
from delivery.webhooks.batching import segment
from delivery.webhooks.results import dead_letter_records, log_records
from delivery.webhooks.retries import retry_messages
from fanout.archiver import main_loop
from fanout.kafka import publishing, topic_scanner
from fanout.local import stack
from fanout.redrive import dead_letter_search, enqueue, redrive_plan
from fanout.redrive import selection as topic_letters
from subscriptions_db.archive.ingest import archived_rows, partitions, writer
from subscriptions_db.archive.search import archived_dead_letters, attempts, deliveries, redrive_requests, statistics
from subscriptions_db.archive.search.selection import DeadLetterSearch
from subscriptions_db.postgres import connect, migrate
from tests.e2e.conftest import assert_eventually
from tests.support import archive, builders

pytestmark = pytest.mark.integration


class Platform:
    """Topics and an archive for one test."""

    def __init__(self, kafka, database, folder):
        name = uuid.uuid4().hex[:8]
        self.folder = folder
        self.document = {
            "database": {"url": database},
            "kafka": {"bootstrap_servers": kafka.bootstrap_servers},
            "delivery": {
                "attempts_topic": f"attempts-{name}", "dead_letter_topic": f"dead-{name}",
                "rejected_topic": f"rejected-{name}", "retries_topic": f"retries-{name}", "result_partitions": 2,
            },
        }  # fmt: skip
        self.config = settings.Settings.model_validate(self.document)
        self.stop = threading.Event()
        self.migrate()
        topics.ensure_all(self.config)

    def migrate(self):
        with self.connected() as connection:
            migrate.migrate(connection)

    def connected(self):
        return connect.connect(self.config.database)

    def publish(self, topic, *values, key=b"ep1"):
        publisher = publishing.Publisher(self.config.kafka)
        for value in values:
            publisher.publish(publishing.Message(topic=topic, value=value, key=key))
        publisher.flush()

    def publish_letters(self, *ids, **fields):
        written = [
            archive.letter(event_id=event_id, record=builders.record(offset=offset), **fields)
            for offset, event_id in enumerate(ids)
        ]
        self.publish(self.config.delivery.dead_letter_topic, *written)
        return written

    def publish_attempts(self, *outcomes):
        self.publish(self.config.delivery.attempts_topic, *archive.attempts(*outcomes))

    def archive_once(self, **overrides):
        config = settings.Settings.model_validate(self.document | overrides)
        main_loop.run(config, stop=self.stop, once=True)

    def letters(self, customer="c1"):
        with self.connected() as connection:
            return archived_dead_letters.browse(connection, customer, DeadLetterSearch(), after=0, limit=1000).letters

    def archived(self):
        with self.connected() as connection:
            return connection.execute("select count(*) as count from dead_letters").fetchone()["count"]

    def event_ids(self):
        return [orjson.loads(letter.letter)["event_id"] for letter in self.letters()]

    @contextlib.contextmanager
    def archiving(self, work=None):
        thread = threading.Thread(target=work or functools.partial(main_loop.run, self.config, stop=self.stop))
        thread.start()
        try:
            yield
        finally:
            self.stop.set()
            thread.join(60)
            assert not thread.is_alive()

    def start(self):
        path = self.folder / "fanout.toml"
        lines = []
        for area, fields in self.document.items():
            lines += [f"[{area}]", *(f"{name} = {stack.toml(value)}" for name, value in fields.items())]
        path.write_text("\n".join(lines))
        return subprocess.Popen(
            [sys.executable, "-m", "fanout.cli.main", "--config", str(path), "archive"],
            stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip


@pytest.fixture
def platform(kafka, database, tmp_path):
    return Platform(kafka, database, tmp_path)


def left_out(reason):
    return metrics.ARCHIVE_LEFT_OUT.labels(reason)._value.get()


def test_the_archiver_logs_its_start_and_its_progress(platform, caplog):
    """Regression: `fanout archive` logged nothing from start to end, and seemed to hang."""
    caplog.set_level("INFO", main_loop.__name__)
    platform.publish_letters("e1", "e2")
    platform.archive_once()
    topics = platform.config.delivery
    assert [record.getMessage() for record in caplog.records if record.name == main_loop.__name__] == [
        f"archiving {topics.dead_letter_topic}, {topics.attempts_topic} into Postgres",
        "archived dead letters: 2, attempts: 0",
        "stopped gracefully. Archived since the start: dead letters: 2, attempts: 0. The next start continues after these",
    ]


def test_records_are_archived_once_over_many_starts(platform):
    written = platform.publish_letters("e1", "e2")
    now = main_loop._now()
    platform.publish_attempts(archive.outcome(at=now), archive.outcome(at=now))
    platform.archive_once()
    platform.publish_letters("e3")
    for _ in range(2):
        platform.archive_once()
    assert platform.event_ids() == ["e1", "e2", "e3"]
    read = [orjson.loads(archived_rows.topic_record(letter.letter, letter.payload)) for letter in platform.letters()]
    assert read[:2] == [orjson.loads(letter) for letter in written]
    with platform.connected() as connection:
        assert len(attempts.search(connection, "c1", attempts.AttemptSearch(endpoint_id="ep1"), limit=10).attempts) == 2
        assert len(connection.execute("select from pg_inherits where inhparent = 'attempts'::regclass").fetchall()) == 3


def test_a_metric_shows_the_time_of_the_last_archived_record(platform):
    topic, began = platform.config.delivery.dead_letter_topic, time.time()
    platform.publish_letters("e1", "e2")
    ended = time.time()
    platform.archive_once()
    assert began - 0.001 <= metrics.ARCHIVE_REACHED.labels(topic)._value.get() <= ended


def test_attempts_are_not_archived_if_the_setting_is_off(platform):
    platform.publish_attempts(archive.outcome(at=main_loop._now()))
    platform.archive_once(archive={"attempts": False})
    with platform.connected() as connection:
        assert attempts.search(connection, "c1", attempts.AttemptSearch(), limit=10).attempts == []
    platform.archive_once()
    with platform.connected() as connection:
        assert len(attempts.search(connection, "c1", attempts.AttemptSearch(), limit=10).attempts) == 1


def test_the_archiver_counts_statistics(platform):
    now = main_loop._now()
    platform.publish_attempts(archive.outcome(at=now), archive.without_attempt(OutcomeKind.SKIPPED, "subscription_paused"))
    platform.publish_letters("e1", dead_lettered_at=now)
    for _ in range(2):
        platform.archive_once()
    day = dt.timedelta(days=1)
    with platform.connected() as connection:
        found = statistics.read(connection, "c1", "ep1", since=now - day, until=now + day, by=statistics.Granularity.DAY).total
    assert (found.attempts, found.error_classes, found.skipped, found.dead_lettered) == (1, {"server_error": 1}, 1, 1)


def test_a_delivery_without_attempt_has_the_time_of_its_record(platform):
    began = main_loop._now() - dt.timedelta(milliseconds=1)
    platform.publish_attempts(
        archive.without_attempt(OutcomeKind.SKIPPED, "subscription_paused", event_id="e1"),
        archive.without_attempt(OutcomeKind.POSTPONED, "endpoint_paused", event_id="e2"),
    )
    ended = main_loop._now()
    for _ in range(2):
        platform.archive_once()
    with platform.connected() as connection:
        found = deliveries.search(connection, "c1", deliveries.DeliverySearch(), limit=10).deliveries
    assert {(delivery.event_id, delivery.status, delivery.reason) for delivery in found} == {
        ("e1", "skipped", "subscription_paused"), ("e2", "waiting", "endpoint_paused"),
    }  # fmt: skip
    assert all(began <= delivery.began_at <= ended for delivery in found)


def test_a_foreign_record_is_logged_counted_and_left_out(platform, caplog):
    before = left_out("unreadable")
    config = platform.config.delivery
    incomplete = orjson.loads(archive.letter())
    del incomplete["subscription_id"]
    poison = [b"", b"\xff\xfe", b"{}", b'"' + b"x" * 100_000, b'{"x":' + b"[" * 100_000, orjson.dumps(incomplete), None]
    platform.publish(config.dead_letter_topic, *poison, key=b"a")
    platform.publish(config.attempts_topic, b'{"kind":"outcomes","entries":[{"kind":"attempt"}]}', b'{"kind":"\xff"}')
    platform.publish(config.dead_letter_topic, archive.letter(event_id="e1"), *poison, archive.letter(event_id="e2"), key=b"a")
    platform.archive_once()
    assert platform.event_ids() == ["e1", "e2"]
    assert left_out("unreadable") - before == 16
    assert f"{config.dead_letter_topic}:" in caplog.text
    assert "is left out of the archive" in caplog.text


def test_the_archiver_follows_topics_and_finds_new_partitions(platform):
    archiver = main_loop.Archiver(platform.config, platform.stop, partition_check_s=0.1)
    topic = platform.config.delivery.dead_letter_topic
    with platform.archiving(functools.partial(archiver.run, once=False)):
        platform.publish_letters("e1")
        assert_eventually(platform.event_ids, lambda found: found == ["e1"])
        admin = AdminClient(kafka_clients.for_librdkafka(platform.config.kafka))
        admin.create_partitions([NewPartitions(topic, 8)])[topic].result(10)
        assert_eventually(lambda: len(admin.list_topics(topic).topics[topic].partitions), lambda count: count == 8)
        for number in range(20):
            platform.publish(topic, archive.letter(event_id=f"n{number}"), key=b"%d" % number)
        assert_eventually(lambda: len(platform.event_ids()), lambda count: count == 21)


def test_a_killed_postgres_is_waited_for_without_loss_or_repeat(kafka, own_postgres, tmp_path, caplog):
    platform = Platform(kafka, own_postgres.url, tmp_path)
    with platform.archiving():
        platform.publish_letters("e1")
        assert_eventually(platform.event_ids, lambda found: found == ["e1"])
        own_postgres.kill()
        platform.publish_letters("e2")
        assert_eventually(lambda: caplog.text, lambda text: "the archive pauses" in text)
        own_postgres.start()
        assert_eventually(lambda: connects(platform), bool)
        assert_eventually(platform.event_ids, lambda found: found == ["e1", "e2"])


def connects(platform):
    with contextlib.suppress(errors.RegistryUnavailable), platform.connected():
        return True
    return False


def test_sigkill_and_sigterm_leave_each_dead_letter_once(platform):
    """The process is killed while it archives or after it has archived something, and then started again."""
    ids = [f"e{n:04}" for n in range(3000)]
    for number, how in enumerate((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)):
        before = platform.archived()
        job = platform.start()
        platform.publish_letters(*ids[number * 1000 : (number + 1) * 1000])
        assert_eventually(platform.archived, lambda count, before=before: count > before)
        job.send_signal(how)
        _, output = job.communicate(timeout=60)
        assert job.returncode == (0 if how == signal.SIGTERM else -how), output
    platform.archive_once()
    with platform.connected() as connection:
        found = [
            orjson.loads(row["letter"])["event_id"]
            for row in connection.execute("select letter from dead_letters order by letter_partition, letter_offset")
        ]
    assert found == ids


def test_records_deleted_before_archiving_are_reported_lost(platform, caplog):
    before = left_out("lost")
    platform.publish_letters("e1")
    platform.archive_once()
    platform.publish_letters("e2", "e3", "e4")
    delete_letters(platform, before=3)
    platform.archive_once()
    assert (platform.event_ids(), left_out("lost") - before) == (["e1", "e4"], 2)
    assert "2 records of" in caplog.text
    platform.publish_letters("e5")
    delete_letters(platform, before=5)
    for _ in range(2):  # regression: each start reported the loss again, until a record was archived
        platform.archive_once()
    assert left_out("lost") - before == 3


def delete_letters(platform, before):
    with platform.connected() as connection:
        at = connection.execute("select letter_partition as at from dead_letters").fetchone()["at"]
    admin = AdminClient(kafka_clients.for_librdkafka(platform.config.kafka))
    place = TopicPartition(platform.config.delivery.dead_letter_topic, at, before)
    admin.delete_records([place])[place].result(10)


def test_a_recreated_topic_is_archived_from_its_first_record(platform, caplog):
    platform.publish_letters("e1", "e2", "e3")
    platform.archive_once()
    topic = platform.config.delivery.dead_letter_topic
    admin = AdminClient(kafka_clients.for_librdkafka(platform.config.kafka))
    admin.delete_topics([topic])[topic].result(10)
    assert_eventually(lambda: topic in admin.list_topics().topics, lambda exists: not exists)
    topics.ensure_all(platform.config)
    platform.publish_letters("e4")
    platform.archive_once()
    assert platform.event_ids() == ["e1", "e2", "e3", "e4"]
    assert "deleted and created again" in caplog.text


def test_a_redrive_of_the_archive_equals_one_of_the_command(platform):
    written = platform.publish_letters("e1", "e2", "e3")
    platform.archive_once()
    first, second, _ = [letter.position for letter in platform.letters()]
    with platform.connected() as connection:
        archived_dead_letters.redrive(connection, "c1", [first, second], now=archive.NOW)
    platform.archive_once()
    read = []
    with contextlib.closing(topic_scanner.Scanner(platform.config.kafka)) as scanner:
        scanner.read(scanner.extents([platform.config.delivery.retries_topic]), "retries", read.append)
    [record] = read
    assert [name for name, _ in record_reader.headers_of(record)] == [redrive_plan.NOTE]
    postponed = retry_messages.message(record.value())
    events = [segment.unpacked(entry.packed[0]) for entry in postponed.entries]
    assert [(event.event_id, event.data) for event in events] == [("e1", archive.PAYLOAD), ("e2", archive.PAYLOAD)]
    redriven = redrive_plan.Redriven()
    redriven.add(log_records.decode(dict(record_reader.headers_of(record))[redrive_plan.NOTE]))
    assert [redriven.has(dead_letter_records.decode(letter)) for letter in written] == [True, True, False]
    assert platform.event_ids() == ["e3"]
    with platform.connected() as connection:
        assert writer.offsets(connection)
        assert archived_dead_letters.get(connection, "c1", first).state is archived_dead_letters.LetterState.REDRIVEN


def test_a_letter_redriven_by_the_command_waits_no_longer(platform):
    platform.publish_letters("e1", endpoint="ep1")
    platform.publish_letters("e2", endpoint="ep2")
    platform.archive_once()
    with dead_letter_search.reading(platform.config) as reader:
        assert dead_letter_search.redrive(platform.config, reader, topic_letters.Selection(endpoint_id="ep1")).letters == 1
    platform.archive_once()
    assert platform.event_ids() == ["e2"]


def test_a_redrive_that_kafka_refuses_is_made_later(platform, monkeypatch, caplog):
    platform.publish_letters("e1")
    platform.archive_once()
    [asked] = [letter.position for letter in platform.letters()]
    with platform.connected() as connection:
        archived_dead_letters.redrive(connection, "c1", [asked], now=archive.NOW)
    with monkeypatch.context() as refusing:
        refusing.setattr(enqueue.Enqueuer, "finish", refuse)
        with platform.archiving():
            assert_eventually(lambda: caplog.text, lambda text: "So redrives pause for 30 s" in text)
            platform.publish_letters("e2")
            assert_eventually(platform.event_ids, lambda found: found == ["e2"])
    platform.stop.clear()
    platform.archive_once()
    with platform.connected() as connection:
        assert archived_dead_letters.get(connection, "c1", asked).state is archived_dead_letters.LetterState.REDRIVEN


def refuse(_):
    raise errors.KafkaUnavailable("not today")


def test_with_once_all_requested_redrives_are_made(platform):
    platform.publish_letters(*(f"e{n}" for n in range(redrive_requests.MAX_LETTERS + 1)))
    platform.archive_once()
    with platform.connected() as connection:
        positions = [row["position"] for row in connection.execute("select position from dead_letters")]
        assert len(positions) == redrive_requests.MAX_LETTERS + 1
        archived_dead_letters.redrive(connection, "c1", positions, now=archive.NOW)
    platform.archive_once()
    with platform.connected() as connection:
        states = connection.execute("select distinct state from dead_letters").fetchall()
    assert [row["state"] for row in states] == ["redriven"]


def test_with_once_an_unavailable_server_is_an_error(platform):
    with pytest.raises(errors.RegistryUnavailable):
        platform.archive_once(database={"url": "postgresql://127.0.0.1:1/fanout"})
    with pytest.raises(errors.KafkaUnavailable):
        platform.archive_once(kafka={"bootstrap_servers": "127.0.0.1:1"})


@pytest.mark.parametrize(("kind", "kept_for"), [("dead_letters", "retention_days"), ("attempts", "attempts_retention_days")])
def test_the_archiver_drops_days_past_their_retention(platform, kind, kept_for):
    today = partitions.day_of(main_loop._now())
    past = partitions.oldest(today, getattr(platform.config.archive, kept_for) + 1)
    with platform.connected() as connection:
        assert partitions.create(connection, kind, past)
    platform.archive_once()
    with platform.connected() as connection:
        assert partitions.create(connection, kind, past), "it is gone, and could be made anew"
        assert not partitions.create(connection, kind, today), "it is there"
