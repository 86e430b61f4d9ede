"""The receivers that prove everything else: what they verify, and what they tell of a batch. Requests are made by hand."""

import base64
import datetime as dt
import gzip
import http.client
import os
import subprocess
import sys
import urllib.parse

import orjson
import pytest
import standardwebhooks

from fanout.local import receiver
from load_tests.harness import receiver as load_receiver

pytestmark = pytest.mark.integration
SECRET = load_receiver.SECRET
MESSAGES = [{"type": "order", "id": f"e{n}", "source": "/shop", "data": {"n": n}} for n in range(3)]


def post(url, body, *, signed=None, secret=SECRET, **headers):
    """Post a body, signed as `signed` when it is another one; return the answer's status and body."""
    now = dt.datetime.now(dt.UTC)
    signature = standardwebhooks.Webhook(secret).sign("batch_1", now, (signed or body).decode())
    own = {"webhook-id": "batch_1", "webhook-timestamp": str(int(now.timestamp())), "webhook-signature": signature}
    to = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(to.netloc, timeout=10)
    # In small letters, as the platform writes them.
    connection.request("POST", to.path, body, own | {"content-length": str(len(body))} | headers)
    answer = connection.getresponse()
    response = answer.status, answer.read()
    connection.close()
    return response


@pytest.fixture
def customer():
    """A receiver that keeps what came, and rejects e1 at /picky."""
    got = []
    with receiver.Receiver(
        secrets_of=lambda _: [SECRET],
        on_received=got.append,
        answer=lambda path: 500 if path == "/failing" else 200,
        rejects=lambda path, named: path == "/picky" and named == receiver.BatchEvent("/shop", "e1"),
    ) as running:
        running.got = got
        yield running


@pytest.mark.parametrize("content_type", ["application/json", "application/cloudevents-batch+json"])
def test_a_batch_is_handled_event_by_event(customer, content_type):
    assert post(f"{customer.url}/ep1", orjson.dumps(MESSAGES), **{"content-type": content_type}) == (200, b"")
    [request] = customer.got
    assert (request.is_verified, request.webhook_id) == (True, "batch_1")
    assert request.batch == request.accepted == tuple(receiver.BatchEvent("/shop", f"e{n}") for n in range(3))


def test_a_compressed_batch_is_unpacked_and_verified_by_what_was_packed(customer):
    body = orjson.dumps(MESSAGES)
    post(f"{customer.url}/ep1", gzip.compress(body), signed=body, **{"content-encoding": "gzip"})
    [request] = customer.got
    assert (request.body, request.is_verified, len(request.batch)) == (body, True, 3)


def test_a_batch_larger_than_a_megabyte_is_read(customer):
    many = [message | {"data": "x" * 1000} for message in MESSAGES] * 1000
    assert post(f"{customer.url}/ep1", orjson.dumps(many))[0] == 200
    assert len(customer.got[0].batch) == 3000


def test_a_response_names_the_events_that_the_customer_rejects(customer):
    status, answer = post(f"{customer.url}/picky", orjson.dumps(MESSAGES))
    assert (status, [rejection["index"] for rejection in orjson.loads(answer)["rejected"]]) == (200, [1])
    assert [named.event_id for named in customer.got[0].accepted] == ["e0", "e2"]


def test_of_a_batch_that_fails_nothing_is_accepted(customer):
    assert post(f"{customer.url}/failing", orjson.dumps(MESSAGES))[0] == 500
    assert (customer.got[0].accepted, len(customer.got[0].batch)) == ((), 3)


def test_a_batch_that_was_changed_on_the_way_does_not_verify(customer):
    post(f"{customer.url}/ep1", orjson.dumps(MESSAGES[:2]), signed=orjson.dumps(MESSAGES))
    assert not customer.got[0].is_verified


@pytest.mark.parametrize("body", [b'{"id":"e1","source":"/shop"}', b"[1,2]", b'[{"id":"e1"}]', b"[", b"[]x"])
def test_what_is_no_batch_is_a_single_event(customer, body):
    post(f"{customer.url}/ep1", body)
    assert (customer.got[0].batch, customer.got[0].accepted) == (None, ())


BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def test_listen_writes_each_request_at_once_into_a_pipe():
    """Regression: with --json, some eight lines came together, and the last ones never."""
    command = [sys.executable, "-m", "fanout.cli.main", "listen", "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=BUFFERED) as listening:
        post(listening.stderr.readline().split()[2].rstrip(";") + "/ep1", b'{"n":1}')
        assert orjson.loads(listening.stdout.readline())["body"] == '{"n":1}'
        listening.terminate()


def test_listen_shows_a_batch_in_one_line_and_why_it_verifies_nothing():
    """Regression: a request that another secret signed was NOT VERIFIED for no named reason."""
    command = [sys.executable, "-m", "fanout.cli.main", "listen", "--port", "0", "--secret", SECRET]
    wrong = "NOT VERIFIED: not signed with this --secret (answered 200 all the same)"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=BUFFERED) as listening:
        url = listening.stderr.readline().split()[2].rstrip(";")
        body = orjson.dumps(MESSAGES)
        post(f"{url}/ep1", gzip.compress(body), signed=body, **{"content-encoding": "gzip"})
        post(f"{url}/ep1", b'{"n":1}')
        post(f"{url}/ep1", b'{"n":1}', signed=b'{"n":2}')
        shown = [listening.stdout.readline().strip() for _ in range(5)]
        listening.terminate()
    assert shown == [
        f"/ep1 batch_1 verified: 3 events, {len(body)} bytes, gzip",
        "/ep1 batch_1 verified",
        '{"n":1}',
        f"/ep1 batch_1 {wrong}",
        '{"n":1}',
    ]


@pytest.fixture
def customers():
    with load_receiver.Receiver() as running:
        yield running


def payload(number):
    return {"id": f"0001-0123456789abcdef-{number:08d}", "tenant_id": "t7", "sent_at_ms": 1_700_000_000_000, "note": "x"}


def as_sent(*numbers):
    return orjson.dumps([{"id": payload(n)["id"], "tenant_id": "t7", "data": payload(n)} for n in numbers])


def test_the_load_tests_receiver_records_every_event(customers):
    compressed = as_sent(4, 5, 6)
    post(f"{customers.url}/ep12", as_sent(1, 2, 3))
    post(f"{customers.url}/ep7", gzip.compress(compressed), signed=compressed, **{"content-encoding": "gzip"})
    post(f"{customers.url}/ep8", orjson.dumps({"data": payload(9)}))
    assert customers.count == 7
    report = customers.report()
    assert list(report.numbers) == [1, 2, 3, 4, 5, 6, 9]
    assert list(report.endpoints) == [12, 12, 12, 7, 7, 7, 8]
    assert (list(report.requests), report.connections, report.unverified) == ([3, 3, 1], 3, 0)
    assert min(report.ages_ms) > 0


def test_the_load_tests_receiver_counts_what_does_not_verify(customers):
    post(f"{customers.url}/ep1", as_sent(1), secret="whsec_" + base64.b64encode(b"another key, 32 bytes of ours 32").decode())
    post(f"{customers.url}/ep1", as_sent(2))
    report = customers.report()
    assert (report.unverified, list(report.numbers)) == (1, [1, 2])
