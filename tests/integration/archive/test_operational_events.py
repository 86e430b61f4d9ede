"""`fanout archive` publishes operational events once, to their topic, in the order in which they happened."""

import contextlib
import datetime as dt
import threading
import uuid

import orjson
import prometheus_client
import pytest

from delivery import errors
from delivery.config import settings
from delivery.model import OutcomeKind
from delivery.stages.kafka import record_reader, topics
from fanout.archiver import main_loop
from fanout.kafka import publishing, topic_scanner
from subscriptions_db.archive.ingest import writer
from subscriptions_db.archive.notifications import key_expiry, outbox
from subscriptions_db.archive.notifications.endpoint_health import EventKind, Policy, Signal, SignalKind
from subscriptions_db.postgres import connect
from subscriptions_db.registration import endpoint_status
from tests.e2e.conftest import assert_eventually
from tests.support import archive

pytestmark = pytest.mark.integration

POLICY = Policy(failing_after_s=300, backlog_events=3, quiet_s=3600)
FAILING = [Signal("ep1", "c1", SignalKind.FAILED, archive.NOW + dt.timedelta(seconds=at_s), 5, "timeout") for at_s in (0, 300)]


class Platform:
    """Topics and an archive for one test."""

    def __init__(self, kafka, database):
        name = uuid.uuid4().hex[:8]
        self.topic = f"events-{name}.fanout.operational"
        self.document = {
            "database": {"url": database},
            "kafka": {"bootstrap_servers": kafka.bootstrap_servers},
            "source": {"topic_pattern": rf"events-{name}\..+"},
            "delivery": {
                "attempts_topic": f"attempts-{name}", "dead_letter_topic": f"dead-{name}",
                "rejected_topic": f"rejected-{name}", "retries_topic": f"retries-{name}", "result_partitions": 2,
            },
            "operations": {"topic": self.topic, "failing_after_s": 60, "backlog_events": 3, "quiet_s": 3600},
        }  # fmt: skip
        self.config = settings.Settings.model_validate(self.document)
        with self.connected() as connection:
            connection.execute("insert into customers values ('c1'), ('c2')")
            connection.execute(
                "insert into endpoints (endpoint_id, customer_id, url) select 'ep' || n, 'c' || n, 'https://example.com/'"
                " from generate_series(1, 2) n"
            )
        topics.ensure_all(self.config)
        self._publisher = publishing.Publisher(self.config.kafka)

    def connected(self):
        return connect.connect(self.config.database)

    def publish(self, topic, *values):
        for value in values:
            self._publisher.publish(publishing.Message(topic=topic, value=value, key=b"ep1"))
        self._publisher.flush()

    def archive_once(self, **overrides):
        config = settings.Settings.model_validate(self.document | overrides)
        main_loop.run(config, stop=threading.Event(), once=True)

    def archived(self):
        with self.connected() as connection:
            return connection.execute("select count(*) as count from dead_letters").fetchone()["count"]

    def published(self):
        """Return the events of the topic: type, customer and endpoint, and their headers and data."""
        read = []
        with contextlib.closing(topic_scanner.Scanner(self.config.kafka)) as scanner:
            scanner.read(scanner.extents([self.topic]), "operational events", read.append)
        return [
            ({name: value.decode() for name, value in record_reader.headers_of(message)}, orjson.loads(message.value()))
            for message in read
        ]

    def kinds(self):
        published = [(headers["ce_type"], headers["ce_subtenantid"], data) for headers, data in self.published()]
        return sorted((kind, customer, data.get("endpoint_id") or data["key_id"]) for kind, customer, data in published)


@pytest.fixture
def platform(kafka, database):
    return Platform(kafka, database)


def test_operational_events_are_published_once_over_many_starts(platform):
    now = main_loop._now()
    postponed = archive.outcome(endpoint="ep2", customer="c2")._replace(kind=OutcomeKind.POSTPONED, attempts=())
    platform.publish(platform.config.delivery.attempts_topic, *archive.attempts(*[postponed] * 3))
    platform.publish(platform.config.delivery.dead_letter_topic, archive.letter(), archive.letter(event_id="e2"))
    with platform.connected() as connection:
        endpoint_status.disable(connection, "ep1", "gone")
        connection.execute(KEYS, {"now": now + dt.timedelta(hours=1)})
    for _ in range(3):
        platform.archive_once()
    assert platform.kinds() == [
        ("fanout.api-key.expiring", "c1", "fk_expiredaaaaa"),
        ("fanout.api-key.expiring", "c2", "fk_sooneraaaaaa"),
        ("fanout.backlog.growing", "c2", "ep2"),
        ("fanout.dead-letters.waiting", "c1", "ep1"),
        ("fanout.endpoint.disabled", "c1", "ep1"),
    ]
    for headers, data in platform.published():
        assert (headers["ce_tenantid"], headers["ce_source"], headers["ce_specversion"]) == ("fanout", "fanout", "1.0")
        assert abs((dt.datetime.fromisoformat(headers["ce_time"]) - now).total_seconds()) < 600
        assert next(iter(data)) in {"endpoint_id", "key_id"}


def test_an_endpoint_fails_and_recovers_by_the_times_of_records(platform, monkeypatch):
    times = iter([archive.NOW + dt.timedelta(seconds=at_s) for at_s in (0, 1, 2, 3, 61, 62, 63)])
    monkeypatch.setattr(main_loop, "_written_at", lambda *_: next(times))
    [failed] = archive.attempts(archive.outcome(at=main_loop._now()))
    accepted = failed.replace(b'"server_error"', b"null")
    log = platform.config.delivery.attempts_topic
    platform.publish(log, *[failed] * 4)
    platform.archive_once()
    assert platform.published() == []
    platform.publish(log, failed, failed, accepted)
    platform.archive_once()
    published = [(headers["ce_type"], data) for headers, data in platform.published()]
    since = "2026-05-10T12:00:00.000Z"
    assert published == [
        ("fanout.endpoint.failing", {"endpoint_id": "ep1", "since": since, "failures": 5, "error_class": "server_error"}),
        ("fanout.endpoint.recovered", {"endpoint_id": "ep1", "since": since}),
    ]


def test_failing_operational_events_cause_no_further_ones(platform, monkeypatch):
    """Deliveries of operational events that fail, wait and are dead-lettered cause no further operational event about them."""
    times = iter([archive.NOW + dt.timedelta(seconds=10 * at) for at in range(1000)])
    monkeypatch.setattr(main_loop, "_written_at", lambda *_: next(times))
    own = archive.outcome(tenant_id="fanout", event_type="fanout.endpoint.failing", at=main_loop._now())
    given_up = archive.letter(tenant_id="fanout", event_type="fanout.endpoint.failing")
    for _ in range(3):
        platform.publish(
            platform.config.delivery.attempts_topic,
            *archive.attempts(own, own._replace(kind=OutcomeKind.POSTPONED, attempts=())) * 20,
        )
        platform.publish(platform.config.delivery.dead_letter_topic, *[given_up] * 20)
        platform.archive_once()
    assert platform.kinds() == [("fanout.endpoint.failing", "c1", "ep1")]


def test_operational_events_need_a_topic_that_the_job_reads(platform):
    platform.publish(platform.config.delivery.dead_letter_topic, archive.letter())
    platform.archive_once(operations={"topic": ""})
    with platform.connected() as connection:
        assert connection.execute("select from endpoint_conditions").fetchall() == []
    with pytest.raises(errors.SettingsError, match=r"operations\.topic: elsewhere does not match source\.topic_pattern"):
        platform.archive_once(operations={"topic": "elsewhere"})


def test_archiving_continues_without_the_topic_of_operational_events(platform, monkeypatch, in_background):
    """Regression: the archive paused for ever where its login may not create `operations.topic`."""
    ensure = topics.ensure

    def refuse(kafka, wanted, *others):
        if platform.topic in wanted:
            raise errors.KafkaUnavailable("Topic authorization failed")
        ensure(kafka, wanted, *others)

    monkeypatch.setattr(topics, "ensure", refuse)
    platform.publish(platform.config.delivery.dead_letter_topic, archive.letter())
    stop = threading.Event()
    running = in_background(main_loop.run, platform.config, stop=stop)
    try:
        assert_eventually(platform.archived, lambda found: found == 1)
    finally:
        stop.set()
        running.result(60)


def test_an_event_that_kafka_refuses_is_published_later(platform, monkeypatch):
    platform.publish(platform.config.delivery.dead_letter_topic, archive.letter())
    flush = publishing.Publisher.flush

    def refuse(publisher):
        flush(publisher)
        raise errors.KafkaUnavailable("not today")

    with monkeypatch.context() as refusing:
        refusing.setattr(publishing.Publisher, "flush", refuse)
        with pytest.raises(errors.KafkaUnavailable, match="not today"):
            platform.archive_once()
    platform.archive_once()
    first, second = [headers["ce_id"] for headers, _ in platform.published()]
    assert first == second


def test_reached_quotas_are_published_once_to_customers_and_operators(platform):
    """Each customer has one endpoint. The event about a tenant has no sub-tenant, so only operators get it."""
    with platform.connected() as connection:
        connection.execute("insert into tenants (tenant_id) values ('t1')")
        # Tomorrow too: the archive may look after midnight.
        connection.execute(
            "insert into published_events select (now() at time zone 'utc')::date + n, 't1', 9 from generate_series(0, 1) n"
        )
    for _ in range(2):
        platform.archive_once(api={"max_endpoints_per_customer": 1, "max_tenant_events_per_day": 9})
    published = [
        (headers.get("ce_subtenantid"), data["quota"], data.get("customer_id") or data["tenant_id"], data["limit"])
        for headers, data in platform.published()
    ]
    assert sorted(published, key=str) == [
        ("c1", "endpoints", "c1", 1), ("c2", "endpoints", "c2", 1), (None, "events_per_day", "t1", 9),
    ]  # fmt: skip
    reached = {quota: prometheus_client.REGISTRY.get_sample_value("fanout_archive_quotas_reached", {"quota": quota})
               for quota in ("endpoints", "events_per_day", "dead_letters")}  # fmt: skip
    assert reached == {"endpoints": 2, "events_per_day": 1, "dead_letters": 0}


KEYS = """
insert into api_keys (key_id, customer_id, scope, name, digest, expires_at, revoked_at) values
    ('fk_soonaaaaaaaa', 'c1', 'poller', 'of the shop', sha256('a'), %(now)s + interval '14 days', null),
    ('fk_sooneraaaaaa', 'c2', 'read_only', '', sha256('a'), %(now)s + interval '1 second', null),
    ('fk_lateraaaaaaa', 'c1', 'poller', '', sha256('a'), %(now)s + interval '14 days 1 second', null),
    ('fk_neveraaaaaaa', 'c1', 'poller', '', sha256('a'), null, null),
    ('fk_expiredaaaaa', 'c1', 'poller', '', sha256('a'), %(now)s, null),
    ('fk_revokedaaaaa', 'c1', 'poller', '', sha256('a'), %(now)s + interval '1 day', %(now)s),
    ('fk_operatoraaaa', null, 'operator', '', sha256('a'), %(now)s + interval '1 day', null)
"""


def reported_keys(connection):
    with outbox.claim_page(connection) as waiting:
        return [(event.kind, event.customer_id, event.data["key_id"]) for event in waiting]


def test_each_key_that_expires_soon_is_reported_once(connection):
    connection.execute(KEYS, {"now": archive.NOW})
    for _ in range(2):
        key_expiry.record(connection, POLICY, now=archive.NOW)
    kind = EventKind.KEY_EXPIRING
    assert reported_keys(connection) == [(kind, "c2", "fk_sooneraaaaaa"), (kind, "c1", "fk_soonaaaaaaaa")]
    for _ in range(2):
        key_expiry.record(connection, POLICY, now=archive.NOW + dt.timedelta(seconds=1))
    assert reported_keys(connection) == [(kind, "c1", "fk_lateraaaaaaa")]


def test_two_archives_report_a_key_once(connection, opened, in_background):
    connection.execute(KEYS, {"now": archive.NOW})
    with connection.transaction():
        key_expiry.record(connection, POLICY, now=archive.NOW)
        second = in_background(key_expiry.record, opened(), POLICY, now=archive.NOW)
        assert not second.done()
    second.result(60)
    assert len(reported_keys(connection)) == 2


def test_a_crash_before_the_commit_reports_a_key_later(connection):
    connection.execute(KEYS, {"now": archive.NOW})
    with contextlib.suppress(ZeroDivisionError), connection.transaction():
        key_expiry.record(connection, POLICY, now=archive.NOW)
        raise ZeroDivisionError
    assert reported_keys(connection) == []
    key_expiry.record(connection, POLICY, now=archive.NOW)
    assert len(reported_keys(connection)) == 2


def test_a_record_that_is_read_again_counts_once_for_health(connection):
    taken = archive.taken_letter(0)
    taken.signals.extend(FAILING)
    for _ in range(3):
        writer.write(connection, [taken], archive.KEPT, now=archive.NOW, policy=POLICY)
    with outbox.claim_page(connection) as waiting:
        assert [event.kind for event in waiting] == [EventKind.FAILING]
    with outbox.claim_page(connection) as waiting:
        assert waiting == []


def test_a_crash_before_the_commit_publishes_again_later(connection, opened):
    class Killed(Exception):
        pass

    dying = opened()
    with contextlib.suppress(Killed), dying.transaction():
        outbox.record(dying, FAILING, POLICY)
        raise Killed
    with outbox.claim_page(connection) as waiting:
        assert waiting == []
    outbox.record(connection, FAILING, POLICY)
    with contextlib.suppress(Killed), outbox.claim_page(connection) as waiting:
        [first] = waiting
        raise Killed
    with outbox.claim_page(connection) as waiting:
        assert waiting == [first]


def test_a_healthy_endpoint_has_no_row_of_health(connection):
    outbox.record(connection, [Signal("ep1", "c1", SignalKind.ACCEPTED, archive.NOW, 1000)], POLICY)
    assert connection.execute("select from endpoint_conditions").fetchall() == []


def test_dead_letters_in_the_quiet_time_are_reported_after_it(connection):
    letters = [Signal("ep1", "c1", SignalKind.DEAD_LETTER, archive.NOW, reason="timeout")]
    for _ in range(3):
        outbox.record(connection, letters, POLICY)
    for at_s in (0, 3599, 3600, 3601):
        outbox.record_due(connection, POLICY, now=archive.NOW + dt.timedelta(seconds=at_s))
    with outbox.claim_page(connection) as waiting:
        assert [event.data["letters"] for event in waiting] == [1, 2]


def test_the_successor_of_a_deleted_endpoint_gets_no_report_of_its_events(connection):
    """Regression: dead letters of the deleted endpoint were reported to the customer that registered its id again."""
    of_first, of_second = (Signal("ep1", customer, SignalKind.DEAD_LETTER, archive.NOW) for customer in ("c1", "c2"))
    outbox.record(connection, [of_first, of_first], POLICY)
    connection.execute("insert into endpoints (endpoint_id, customer_id, url) values ('ep1', 'c2', 'https://example.com/')")
    for _ in range(3):  # an archive that is behind reads signals of both in turn
        outbox.record(connection, [of_second], POLICY)
        outbox.record(connection, [of_first], POLICY)
    outbox.record_due(connection, POLICY, now=archive.NOW + dt.timedelta(days=1))
    with outbox.claim_page(connection) as waiting:
        assert [(event.customer_id, event.data["letters"]) for event in waiting] == [("c1", 1), ("c2", 1), ("c2", 2)]


def test_the_end_of_a_quiet_time_of_a_deleted_endpoint_changes_no_other_health(connection):
    """Otherwise, the disabled endpoint of the next customer would be reported twice."""
    outbox.record(connection, [Signal("ep1", "c1", SignalKind.DEAD_LETTER, archive.NOW)] * 2, POLICY)
    connection.execute("insert into endpoints (endpoint_id, customer_id, url) values ('ep1', 'c2', 'https://example.com/')")
    endpoint_status.disable(connection, "ep1", "gone")
    for _ in range(3):
        outbox.record_due(connection, POLICY, now=dt.datetime.now(dt.UTC))
    with outbox.claim_page(connection) as waiting:
        assert [(event.kind, event.customer_id) for event in waiting] == [
            (EventKind.DEAD_LETTERS_WAITING, "c1"),
            (EventKind.DISABLED, "c2"),
        ]
    outbox.delete_orphans(connection)
    assert [row["customer_id"] for row in connection.execute("select customer_id from endpoint_conditions").fetchall()] == [
        "c2"
    ]


def test_a_quiet_time_of_days_delays_the_report_of_a_disabled_endpoint(connection):
    """Regression: after a day no report was made, also if the quiet time had delayed it."""
    connection.execute("insert into endpoints (endpoint_id, customer_id, url) values ('ep1', 'c1', 'https://example.com/')")
    now, two_days = dt.datetime.now(dt.UTC), POLICY._replace(quiet_s=2 * 86_400)
    for after_days, reason in ((0, "gone"), (1.5, "again"), (2.5, "again")):
        if after_days < 2:
            endpoint_status.enable(connection, "ep1")
            endpoint_status.disable(connection, "ep1", reason)
        outbox.record_due(connection, two_days, now=now + dt.timedelta(days=after_days))
    with outbox.claim_page(connection) as waiting:
        assert [event.data["reason"] for event in waiting] == ["gone", "again"]


def test_a_long_quiet_time_reports_no_endpoint_that_was_disabled_long_ago(connection):
    """Otherwise, switching operational events on would report them all."""
    connection.execute("insert into endpoints (endpoint_id, customer_id, url) values ('ep1', 'c1', 'https://example.com/')")
    endpoint_status.disable(connection, "ep1", "gone")
    now = dt.datetime.now(dt.UTC) + dt.timedelta(days=10)
    outbox.record_due(connection, POLICY._replace(quiet_s=30 * 86_400), now=now)
    with outbox.claim_page(connection) as waiting:
        assert waiting == []


def test_an_endpoint_disabled_long_ago_is_not_reported(connection):
    connection.execute("insert into endpoints (endpoint_id, customer_id, url) values ('ep1', 'c1', 'https://example.com/')")
    endpoint_status.disable(connection, "ep1", "gone")
    now = dt.datetime.now(dt.UTC)
    outbox.record_due(connection, POLICY, now=now + dt.timedelta(days=2))
    with outbox.claim_page(connection) as waiting:
        assert waiting == []
    for _ in range(2):
        outbox.record_due(connection, POLICY, now=now)
    with outbox.claim_page(connection) as waiting:
        assert [(event.kind, event.data["reason"]) for event in waiting] == [(EventKind.DISABLED, "gone")]
    endpoint_status.enable(connection, "ep1")
    endpoint_status.disable(connection, "ep1", "again")
    for after_s in (10, 3600, 3601):
        outbox.record_due(connection, POLICY, now=now + dt.timedelta(seconds=after_s))
    with outbox.claim_page(connection) as waiting:
        assert [event.data["reason"] for event in waiting] == ["again"]
    outbox.delete_orphans(connection)
    assert len(connection.execute("select from endpoint_conditions").fetchall()) == 1
    connection.execute("delete from endpoints")
    outbox.delete_orphans(connection)
    assert connection.execute("select from endpoint_conditions").fetchall() == []
