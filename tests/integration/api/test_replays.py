"""Customers request replays of one delivery or of a time range over HTTP. `fanout archive` has tests of its own."""

import dataclasses
import datetime as dt
import functools

import pytest

from subscriptions_db.api.deliveries import replays
from subscriptions_db.archive.ingest import writer
from subscriptions_db.archive.notifications import quotas
from tests.integration.api import world
from tests.support import archive

pytestmark = pytest.mark.integration

REPLAYS, ONE = "/v1/endpoints/acme-orders/replays", f"/v1/attempts/{world.ATTEMPT}/resend"
ADDED = """
insert into replays (replay_id, customer_id, endpoint_id, since, until, state, created_at)
values (%(id)s, 'acme', 'acme-orders', '2026-05-09', '2026-05-10', %(state)s, %(at)s)
"""
DAY = {"since": "2026-05-09T00:00:00Z", "until": "2026-05-10T00:00:00Z"}


@pytest.fixture(autouse=True)
def emptied(served):
    with served.registry() as opened:
        opened.execute("delete from replays")


def test_a_replay_of_a_time_range_is_created_shown_and_cancelled(served, acme):
    made = acme.post(REPLAYS, DAY | {"event_types": ["order.*"]})
    assert (made.status, made.json["state"], made.json["event_types"]) == (201, "waiting", ["order.*"])
    assert (made.json["handed_over"], made.json["webhook_id"], made.json["is_whole"]) == (0, None, True)
    assert acme.post(REPLAYS, DAY).status == 409
    path = f"/v1/replays/{made.json['id']}"
    assert acme.get(path).json == made.json
    assert acme.post(f"{path}/cancel").json["state"] == "cancelled"
    assert acme.post(f"{path}/cancel").status == 409
    second = acme.post(REPLAYS, DAY)
    assert second.status == 201
    listed = acme.get("/v1/replays?endpoint=acme-orders&limit=1").json
    assert [item["id"] for item in listed["items"]] == [second.json["id"]]
    older = acme.get(f"/v1/replays?limit=1&cursor={listed['next_cursor']}").json
    assert ([item["id"] for item in older["items"]], older["next_cursor"]) == ([made.json["id"]], None)
    assert acme.get("/v1/replays?endpoint=another").json["items"] == []
    assert [row["action"] for row in served.audit(made.json["id"])] == ["create", "cancel"]


def test_replays_are_paged_both_ways_counted_and_limited(served, acme):
    for number in range(5):
        state = "done" if number % 2 else "cancelled"
        with served.registry() as opened:
            opened.execute(
                ADDED, {"id": f"rpl_{number:024x}", "state": state, "at": archive.NOW + dt.timedelta(minutes=number)}
            )

    def ids(page):
        return [int(item["id"].removeprefix("rpl_"), 16) for item in page["items"]]

    first = acme.get("/v1/replays?limit=2&total=true").json
    assert (ids(first), first["previous_cursor"], first["total"]) == ([4, 3], None, 5)
    second = acme.get(f"/v1/replays?limit=2&cursor={first['next_cursor']}").json
    third = acme.get(f"/v1/replays?limit=2&cursor={second['next_cursor']}").json
    assert (ids(second), ids(third), third["next_cursor"]) == ([2, 1], [0], None)
    back = acme.get(f"/v1/replays?limit=2&cursor={third['previous_cursor']}").json
    assert back == second
    newest = acme.get(f"/v1/replays?limit=2&cursor={back['previous_cursor']}").json
    assert (ids(newest), newest["previous_cursor"]) == (ids(first), None)
    done = acme.get("/v1/replays?state=done&total=true").json
    assert (ids(done), done["total"]) == ([3, 1], 2)
    since, until = (f"{archive.NOW + dt.timedelta(minutes=minutes):%Y-%m-%dT%H:%M:%SZ}" for minutes in (1, 3))
    assert ids(acme.get(f"/v1/replays?since={since}&until={until}").json) == [2, 1]
    assert acme.get("/v1/replays?state=lost").fields == ["state"]
    [expanded] = acme.get("/v1/replays?limit=1&expand=endpoint").json["items"]
    assert expanded["expanded"] == {"endpoint": acme.get("/v1/endpoints/acme-orders").json}


def test_a_customer_at_its_quota_of_dead_letters_asks_for_no_replay(served, acme, operator):
    with served.registry() as opened:
        opened.execute("insert into customer_quotas (customer_id, max_dead_letters) values ('acme', 1)")
        look = functools.partial(quotas.record, opened, quotas.DefaultQuotas(9, 9, 9, 0, 0), None, now=dt.datetime.now(dt.UTC))
        assert look() == {quotas.Quota.DEAD_LETTERS: 1}
        for path, body in ((REPLAYS, DAY), (ONE, None)):
            answer = acme.post(path, body)
            assert (answer.status, answer.json["code"]) == (429, "quota")
            assert "the quota of the customer is 1 waiting dead letters" in answer.json["detail"]
        assert operator.post(REPLAYS, DAY).status == 201
        opened.execute("update customer_quotas set max_dead_letters = 2")
        assert acme.post(ONE).status == 201  # the larger quota counts at once
        opened.execute("update customer_quotas set max_dead_letters = 1; delete from replays where webhook_id is not null")
        assert acme.post(ONE).status == 429
        # Redriving is what makes room, so no quota refuses it.
        assert acme.post("/v1/dead-letters/redrive", {"everything": True}).json["count"] == 1
        # Regression: the answer promised room after a minute. It came with the next look, up to 21 minutes later.
        assert opened.execute("select reached_at is not null as found from reached_quotas").fetchone() == {"found": True}
        assert acme.post(ONE).status == 201
        opened.execute("delete from replays where webhook_id is not null")
        assert look() == {}
        assert acme.post(ONE).status == 201
        opened.execute("update dead_letters set state = 'waiting'; delete from customer_quotas")


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({}, "since"),
        ({"since": "2026-05-09T00:00:00Z", "until": "2026-05-09T00:00:00Z"}, "since"),
        ({"since": "2026-01-01T00:00:00Z", "until": "2026-05-09T00:00:00Z"}, "since"),
        ({"since": "2026-05-09T00:00:00Z", "until": "9999-01-01T00:00:00Z"}, "until"),
        (DAY | {"event_types": []}, "event_types"),
    ],
)
def test_the_time_range_of_a_replay_is_bounded(acme, asked, field):
    assert acme.post(REPLAYS, asked).fields == [field]


def test_a_resend_names_the_position_of_the_event_in_kafka(served, acme):
    [attempt] = acme.get("/v1/attempts").json["items"]
    assert attempt["id"] == world.ATTEMPT
    made = acme.post(ONE)
    assert (made.status, made.json["webhook_id"], made.json["endpoint"]) == (201, attempt["webhook_id"], "acme-orders")
    assert acme.post(ONE).status == 409
    with served.registry() as opened:
        [row] = opened.execute("select * from replays").fetchall()
    record = archive.outcome().delivery.event.record
    assert (row["topic"], row["partition"], row["offset"]) == (record.topic, record.partition, record.offset)
    assert acme.post(REPLAYS, DAY).status == 201  # beside a time


def test_a_batch_or_an_old_attempt_cannot_be_resent(served, acme):
    asked = {"events": 3, "topic": None}
    for place, (column, value) in enumerate(asked.items(), 2):
        record = archive.taken_attempts(place, archive.outcome(customer="acme", endpoint="acme-orders", at=later(place)))
        record = dataclasses.replace(record, attempts=[record.attempts[0]._replace(**{column: value})])
        with served.registry() as opened:
            writer.write(opened, [record], archive.KEPT, now=archive.NOW)
        newest = acme.get("/v1/attempts?limit=1").json["items"][0]["id"]
        answer = acme.post(f"/v1/attempts/{newest}/resend")
        assert (answer.status, "replay its time" in answer.json["detail"]) == (409, True)
    for nothing in ("nothing", "YS4x"):
        assert acme.post(f"/v1/attempts/{nothing}/resend").status == 404


def later(minutes):
    return archive.NOW + dt.timedelta(minutes=minutes)


def test_the_unfinished_replays_of_a_customer_are_bounded(served, acme):
    with served.registry() as opened:
        opened.execute(
            "insert into replays "
            '(replay_id, customer_id, endpoint_id, webhook_id, subscription_id, topic, partition, "offset") '
            "select 'rpl_' || lpad(to_hex(n), 24, '0'), 'acme', 'acme-orders', 'msg_' || n, 'acme-orders', 'events', 0, n "
            "from generate_series(1, %s) n",
            [replays.MAX_UNFINISHED - 1],
        )
    assert acme.post(ONE).status == 201
    assert "the maximum" in acme.post(REPLAYS, DAY).json["detail"]


def test_the_operator_names_the_customer(operator, acme):
    replay = acme.post(ONE).json["id"]
    assert operator.get(f"/v1/replays/{replay}").fields == ["customer"]
    assert operator.get(f"/v1/replays/{replay}?customer=other").status == 404
    assert operator.get(f"/v1/replays/{replay}?customer=acme").json["state"] == "waiting"
    assert operator.post(REPLAYS, DAY).status == 201
