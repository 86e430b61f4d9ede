"""`fanout archive` enqueues every dead letter whose redrive was requested, also after a topic was recreated."""

import base64

import orjson
import pytest

from delivery.config import settings
from delivery.webhooks.batching import segment
from delivery.webhooks.http import guard
from delivery.webhooks.retries import retry_messages
from fanout.archiver import redrive_step
from fanout.kafka import publishing
from subscriptions_db.archive.ingest import writer
from subscriptions_db.archive.ingest.archived_rows import ArchivedRecord
from subscriptions_db.archive.search import archived_dead_letters, redrive_requests
from subscriptions_db.manifest import manifest
from subscriptions_db.registration import apply
from subscriptions_db.secrets import keyring
from tests.support import archive, builders, publishers

pytestmark = pytest.mark.integration
CONFIG = settings.Settings()


@pytest.fixture
def published(monkeypatch):
    """Keep the messages that the enqueuer publishes, without Kafka."""
    publisher = publishers.Publisher(CONFIG.kafka)
    monkeypatch.setattr(publishing, "Publisher", lambda _: publisher)
    return publisher.published


def put(connection, letter_offset, event_id, event_offset, customer="c1", **fields):
    """Archive the dead letter of an event, each at its offset. `fields` replace fields of the record."""
    written = archive.letter(event_id=event_id, record=builders.record(offset=event_offset), customer=customer)
    written = (
        orjson.dumps(orjson.loads(written)).removesuffix(b"}")
        + b"".join(b',"%s":%s' % (name.encode(), value) for name, value in fields.items())
        + b"}"
    )
    record = ArchivedRecord(topic="dead-letters", partition=0, offset=letter_offset, letter=archive.letter_row(written))
    writer.write(connection, [record], archive.KEPT, now=archive.NOW)


def ask(connection, customer="c1"):
    """Request the redrive of a customer's dead letters."""
    positions = [row["position"] for row in connection.execute("select position from dead_letters").fetchall()]
    archived_dead_letters.redrive(connection, customer, positions, now=archive.NOW)


def redrive_all(connection, published):
    """Redrive all dead letters, and return the ids of the events that were enqueued."""
    ask(connection)
    redrive_step.redrive(CONFIG, connection, now=archive.NOW)
    return enqueued(published)


def enqueued(published):
    """Return the ids of the enqueued events, sorted."""
    retries = [message.value for message in published if message.topic == CONFIG.delivery.retries_topic]
    entries = [entry for value in retries for entry in retry_messages.message(value).entries]
    return sorted(segment.unpacked(packed).event_id for entry in entries for packed in entry.packed)


def register(connection, **retry):
    """Register the endpoint ep1 of the archived dead letters, with these fields `retry`."""
    endpoint = {"id": "ep1", "customer": "c1", "url": "https://hooks.example.com/", "retry": retry}
    document = {"customers": [{"id": "c1"}], "endpoints": [endpoint]}
    ring = keyring.KeyRing.from_settings(settings.KeysSettings(ring={"k1": keyring.generate()}))
    apply.apply(connection, manifest.check(document, guard.Guard()), ring)


@pytest.mark.parametrize(("retry", "days"), [({"max_age_s": 2_592_000}, 30), ({}, 3)])
def test_a_redriven_delivery_waits_as_long_as_its_endpoint_permits(connection, published, retry, days):
    """Regression: it was given up after three days, also if its endpoint was paused for longer and permitted 30."""
    register(connection, **retry)
    put(connection, 0, "e1", 7)
    redrive_all(connection, published)
    [value] = [message.value for message in published if message.topic == CONFIG.delivery.retries_topic]
    [entry] = retry_messages.message(value).entries
    assert entry.expires_ms - entry.since_ms == days * 86_400_000


def states(connection):
    return [row["state"] for row in connection.execute("select state from dead_letters").fetchall()]


def test_dead_letters_of_two_incarnations_are_both_redriven(connection, published):
    """Regression: both dead letters became `redriven`, and only the newer one was enqueued.

    The dead-letter topic had been recreated, so both had the same partition and offset.
    """
    put(connection, 0, "e1", 7)
    writer.restart_partition(connection, ("dead-letters", 0), 1, 0)
    put(connection, 0, "e2", 8)
    assert redrive_all(connection, published) == ["e1", "e2"]
    assert states(connection) == ["redriven"] * 2


def test_dead_letters_of_two_events_at_one_place_are_both_redriven(connection, published):
    """Regression: the older dead letter became `redriven`, and it was never enqueued.

    The topic of the events had been recreated. Both dead letters counted as one delivery.
    """
    put(connection, 0, "e1", 7)
    put(connection, 1, "e2", 7)
    assert redrive_all(connection, published) == ["e1", "e2"]
    assert states(connection) == ["redriven"] * 2


@pytest.mark.parametrize(
    "fields",
    [
        {"attributes": b'{"a":18446744073709551616}'},
        {"attempts": b'[{"attempt":18446744073709551616,"started_at_ms":0,"duration_ms":0}]'},
        {"later": b"[" * 300 + b"]" * 300},
        {"payload_base64": b'"%s"' % base64.b64encode(b'"%s"' % (b"x" * 1_000_000))},
    ],
    ids=["attribute", "attempt", "nesting", "size"],
)
def test_a_dead_letter_of_another_program_stops_no_redrive(connection, published, caplog, fields):
    """Regression: the page ended with a traceback at each start of the archive, and no customer's redrive was made.

    Of a dead letter that is too large, the Kafka client refused the record. So the page was tried again every 30 s, for ever.
    """
    put(connection, 0, "e1", 7, **fields)
    put(connection, 1, "e2", 8)
    assert redrive_all(connection, published) == ["e2"]
    assert states(connection) == ["redriven"] * 2
    assert "cannot be redriven" in caplog.text


def test_a_page_without_a_redrivable_dead_letter_is_followed_by_the_next(connection, published):
    """Regression: `fanout archive --once` could end before the next page."""
    large = base64.b64encode(b'"%s"' % (b"x" * redrive_requests.MAX_BYTES))  # so a page of its own
    put(connection, 0, "e1", 7, payload_base64=b'"%s"' % large, later=b"[" * 300 + b"]" * 300)
    put(connection, 1, "e2", 8)
    assert redrive_all(connection, published) == ["e2"]
    assert states(connection) == ["redriven"] * 2


def test_a_redrive_ends_where_no_dead_letter_can_be_redriven(connection, published):
    put(connection, 0, "e1", 7, later=b"[" * 300 + b"]" * 300)
    assert redrive_all(connection, published) == []
    assert states(connection) == ["redriven"]


def test_a_large_redrive_delays_no_redrive_of_another_customer(connection, published):
    """Regression: a request waited until all older dead letters of another customer were redriven."""
    for number in range(20):
        put(connection, number, f"e{number:02}", number)
    put(connection, 20, "other", 20, customer="c2")
    for customer in ("c1", "c2"):
        ask(connection, customer)
    [size] = connection.execute("select max(length(payload) + length(letter)) as bytes from dead_letters").fetchall()
    redriver = redrive_step.Redriver(CONFIG, max_bytes=2 * size["bytes"])
    for _ in range(redrive_step.PAGES_UNTIL_TURNS):
        assert redriver.step(connection, now=archive.NOW, once=True) == 2
    assert enqueued(published) == [*(f"e{number:02}" for number in range(7)), "other"]
    while redriver.step(connection, now=archive.NOW, once=True):
        pass
    assert len(enqueued(published)) == 21
