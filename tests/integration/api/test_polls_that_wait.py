"""Long polls: a poll that finds nothing waits for a dead letter, within its time, and within limits of number."""

import contextlib
import dataclasses
import http.client
import threading
from dataclasses import dataclass, field

import pytest

from subscriptions_db import server_bounds
from subscriptions_db.api.contract import keys
from subscriptions_db.api.contract.principals import Scope
from subscriptions_db.api.server import long_polls
from tests.integration.api import world
from tests.integration.api.world import ids, in_background, lease, write

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("emptied")]
OFTEN = server_bounds.ServerBounds(poll_every_s=0.02)


@pytest.fixture(scope="module")
def served(postgres):
    with world.served(postgres, bounds=OFTEN, max_polls_per_customer=2) as made:
        yield made


@dataclass
class Waits:
    """Semaphores that are released when a long poll begins to wait, and when it has ended."""

    begun: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    ended: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))


@pytest.fixture
def waits(monkeypatch):
    made, wait = Waits(), long_polls.LongPolls.wait

    async def noted(*asked):
        made.begun.release()
        try:
            return await wait(*asked)
        finally:
            made.ended.release()

    monkeypatch.setattr(long_polls.LongPolls, "wait", noted)
    return made


def happens(what, count=1):
    return all(what.acquire(timeout=20) for _ in range(count))


@pytest.mark.parametrize("way", ["browse", "lease"])
def test_a_long_poll_is_answered_when_a_dead_letter_is_archived(served, poller, waits, way):
    asks = {"browse": lambda: poller.get("/v1/dead-letters?wait_s=20"), "lease": lambda: lease(poller, wait_s=20, limit=1)}
    both = [in_background(asks[way]) for _ in range(2)]
    assert happens(waits.begun, 2)
    write(served, customer="other")  # is not given to them
    write(served, 2)
    given = [ids(poll()) for poll in both]
    with served.registry() as opened:
        rows = opened.execute("select position from dead_letters where customer_id = 'acme' order by position").fetchall()
    whole = [str(row["position"]) for row in rows]
    assert given == [whole, whole] if way == "browse" else sorted(given[0] + given[1]) == whole


def test_one_customer_cannot_occupy_all_long_polls(served, poller, other, waits):
    both = [in_background(lambda: poller.get("/v1/dead-letters?wait_s=20")) for _ in range(2)]
    assert happens(waits.begun, 2)
    refused = poller.get("/v1/dead-letters?wait_s=20")
    assert (refused.status, refused.headers["retry-after"]) == (429, "2")
    assert other.get("/v1/dead-letters?wait_s=0.01").status == 200
    assert poller.get("/v1/dead-letters").status == 200  # this one does not wait
    write(served)
    assert [len(ids(poll())) for poll in both] == [1, 1]


def test_the_number_of_long_polls_is_bounded(postgres, waits):
    with world.served(postgres, bounds=OFTEN, max_polls=1, max_poll_s=60) as served:
        acme, other = served.client(served.keys["acme"]), served.client(served.keys["other"])
        [letter] = ids(acme.get("/v1/dead-letters"))
        acme.post(f"/v1/dead-letters/{letter}/discard")
        poll = in_background(lambda: acme.get("/v1/dead-letters?wait_s=60"))
        assert happens(waits.begun)
        refused = other.get("/v1/dead-letters?wait_s=1")
        assert (refused.status, refused.headers["retry-after"]) == (503, "2")
    assert ids(poll()) == []  # a server that stops answers the polls that wait


def test_long_polls_do_not_block_other_requests(postgres, waits):
    with world.served(postgres, bounds=OFTEN, max_waiting=1, max_poll_s=60) as served:
        acme, other = served.client(served.keys["acme"]), served.client(served.keys["other"])
        both = []
        for _ in range(2):  # one after the other: until it waits, a request is under way
            both.append(in_background(lambda: other.get("/v1/dead-letters?wait_s=60")))
            assert happens(waits.begun)
        assert acme.get("/v1/endpoints").status == 200
    assert [ids(poll()) for poll in both] == [[], []]


def test_a_long_poll_ends_when_its_key_is_revoked(postgres, waits):
    bounds = dataclasses.replace(OFTEN, key_cache_s=0)
    with world.served(postgres, bounds=bounds) as served, served.registry() as opened:
        key = keys.create(opened, customer_id="other", scope=Scope.POLLER)
        client = served.client(key.text.reveal().decode())
        poll = in_background(lambda: client.get("/v1/dead-letters?wait_s=20"))
        assert happens(waits.begun)
        keys.revoke(opened, key.key_id)
        assert poll().status == 401


def test_a_disconnected_poller_gets_no_lease(served, poller, waits):
    connection = http.client.HTTPConnection("127.0.0.1", served.port)
    with contextlib.closing(connection):
        connection.request(
            "POST", f"{world.CONSUMER_PATH}/lease", b'{"wait_s": 60}',
            {"authorization": f"Bearer {poller.key}", "content-type": "application/json"},
        )  # fmt: skip
        assert happens(waits.begun)
    assert happens(waits.ended)
    write(served)
    assert [item["times"] for item in lease(poller).json["items"]] == [1]


def test_a_long_poll_may_exceed_the_request_timeout(postgres):
    with world.served(postgres, bounds=OFTEN, request_timeout_s=0.5) as served:
        assert ids(served.client(served.keys["other"]).get("/v1/dead-letters?wait_s=0.8")) == []


def test_a_long_poll_ends_with_its_wait_and_a_next_cursor(poller):
    answer = poller.get("/v1/dead-letters?wait_s=0.01")
    assert ids(answer) == []
    assert not answer.json["has_more"]
    assert poller.get(f"/v1/dead-letters?cursor={answer.json['next_cursor']}").status == 200
