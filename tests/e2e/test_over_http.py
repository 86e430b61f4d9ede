"""A customer sees over HTTP, with keys of its own, to what its endpoint did not take; receiver and account bear it out."""

import collections
import datetime as dt
import functools

import orjson
import pytest

from delivery.webhooks.results.log_entries import Due
from fanout.demo import over_http
from fanout.local import kafka_server as local_kafka
from fanout.reconcile import proving
from tests.e2e.conftest import START_S, assert_eventually
from tests.integration.api import world

pytestmark = pytest.mark.e2e


def times_accepted(platform):
    return collections.Counter(platform.accepted())


def test_a_customer_polls_redrives_resends_and_replays_over_http(platform):
    """One platform, one story: the steps share its start, which takes most of the time.

    1. What was refused is polled, byte for byte, and acknowledged; once the endpoint is mended it is redriven.
    2. It breaks again, and recovers: what was given up since then is redriven, and what was before is not.
    3. A delivery that it took is sent again, by its attempt.
    4. All of the time is replayed, whatever became of it.
    5. A delivery of another endpoint, which waits for an hour, is resent: it goes out now, and once.
    6. The statistics count each request that the receiver got, and each time that a delivery was given up.
    """
    platform.register([{}])
    platform.register(
        [{"id": "hourly", "endpoint": "ep2", "event_type": "user"}], endpoints=("ep2",), retry={"schedule_s": [3600]}
    )
    platform.create_topic("order", partitions=1)
    platform.statuses["ep1"] = 400
    began = dt.datetime.now(dt.UTC)
    platform.publish(2)
    port = local_kafka.free_port()
    running = [
        platform.start("--lanes", "direct,retry", api={"port": port}),
        platform.beside("archive"),
        platform.beside("serve"),
    ]
    admin, poller = over_http.clients(platform.config, "c1", port)
    assert_eventually(admin.is_ready, bool)

    payloads = {(f"{platform.name}.order", 0, n): orjson.dumps({"id": f"e{n}", "tenant_id": "t1"}) for n in range(2)}
    due = {Due(*place, "s0") for place in payloads}
    polled = over_http.poll(admin, poller, due, payloads, before_poll=lambda: None, timeout_s=START_S)
    assert polled.seen == polled.intact == polled.acknowledged == due
    platform.statuses["ep1"] = 200
    over_http.redrive(admin)
    assert_eventually(lambda: times_accepted(platform), lambda got: got == {"e0": 1, "e1": 1})

    acme = world.Client(port, admin.key.reveal().decode())
    platform.publish(1, first=2)
    assert_eventually(lambda: times_accepted(platform), lambda got: got["e2"] == 1)
    platform.statuses["ep1"] = 400
    platform.publish(1, first=3)
    assert_eventually(lambda: world.ids(acme.get("/v1/dead-letters")), lambda waiting: len(waiting) == 1)
    broke_at = dt.datetime.now(dt.UTC)
    platform.publish(2, first=4)
    waiting = assert_eventually(lambda: world.ids(acme.get("/v1/dead-letters")), lambda waiting: len(waiting) == 3)
    platform.statuses["ep1"] = 200
    recovered = acme.post("/v1/endpoints/ep1/recover", {"since": broke_at.isoformat()}).json
    assert (recovered["count"], recovered["status"]) == (2, "active")
    once = {"e0": 1, "e1": 1, "e2": 1, "e4": 1, "e5": 1}
    assert_eventually(lambda: times_accepted(platform), lambda got: got == once)
    assert world.ids(acme.get("/v1/dead-letters")) == waiting[:1]

    [attempt] = assert_eventually(
        lambda: [attempt for attempt in acme.get("/v1/attempts?accepted=true").json["items"] if attempt["event_id"] == "e2"],
        bool,
    )
    assert delivered_again(acme, acme.post(f"/v1/attempts/{attempt['id']}/resend"), 1)["webhook_id"] == attempt["webhook_id"]
    assert times_accepted(platform) == once | {"e2": 2}

    statuses = {"e3": "dead_lettered"} | dict.fromkeys(once, "delivered")
    assert_eventually(lambda: statuses_of(acme), lambda got: got == statuses)

    replay = acme.post("/v1/endpoints/ep1/replays", {"since": began.isoformat()})
    assert delivered_again(acme, replay, 6)["is_whole"]
    assert times_accepted(platform) == {"e0": 2, "e1": 2, "e2": 3, "e3": 1, "e4": 2, "e5": 2}

    resend_what_waits(platform, acme)
    statistics_count_each_request(platform, acme, dead_lettered={"ep1": 5, "ep2": 0})
    assert len({(request.webhook_id, orjson.loads(request.body)["id"]) for request in platform.received}) == 7
    assert all(request.is_verified for request in platform.received)
    assert [platform.stop(process) for process in running] == [0, 0, 0], platform.log()
    account = proving.reconcile(platform.config, settle_s=0).account
    counts = account.lanes["direct"].counts
    assert account.holds, account.document()
    assert (counts.delivered, counts.dead_lettered, counts.repeated, counts.replayed) == (6, 1, 0, 7), account.document()


def resend_what_waits(platform, acme):
    """Let the event e6 wait for an hour at ep2, mend ep2, and resend the delivery."""
    platform.statuses["ep2"] = 503
    platform.publish(1, event_type="user", first=6)
    assert_eventually(lambda: statuses_of(acme).get("e6"), lambda status: status == "waiting")
    attempt = acme.get("/v1/attempts?endpoint=ep2").json["items"][0]
    platform.statuses["ep2"] = 200
    resent = acme.post(f"/v1/attempts/{attempt['id']}/resend")
    done(acme, resent, lambda got: (got["handed_over"], got["delivered"], got["skipped"]) == (1, 0, 1))
    assert_eventually(lambda: statuses_of(acme), lambda got: got["e6"] == "delivered")
    assert platform.accepted("ep2") == ["e6"]


def statistics_count_each_request(platform, acme, dead_lettered):
    """Wait until the statistics of each endpoint, and of the customer, are equal to the requests that the receiver got.

    `dead_lettered` has how often deliveries of each endpoint were given up.
    """
    names = ("delivered", "dead_lettered", "attempts", "failed_attempts")
    total = collections.Counter()
    for endpoint, given_up in dead_lettered.items():
        requests = [request for request in platform.received if request.path == f"/{endpoint}"]
        accepted = len(platform.accepted_requests(endpoint))
        wanted = dict(zip(names, (accepted, given_up, len(requests), len(requests) - accepted), strict=True))
        assert_eventually(functools.partial(statistics_of, acme, f"/v1/endpoints/{endpoint}/statistics", names), wanted.__eq__)
        total.update(wanted)
    assert_eventually(functools.partial(statistics_of, acme, "/v1/statistics?by=day", names), dict(total).__eq__)


def statistics_of(acme, path, names):
    """Return these counts of the last day. The counts of all hours or days add up to the total."""
    answer = acme.get(path).json
    found = {name: answer["total"][name] for name in names}
    assert found == {name: sum(item[name] for item in answer["items"]) for name in names}
    return found


def statuses_of(acme):
    """Return the status of each delivery, by event id."""
    return {item["event_id"]: item["status"] for item in acme.get("/v1/deliveries").json["items"]}


def delivered_again(acme, asked, count):
    """Wait until a replay has `count` deliveries, and return the replay."""
    replay = done(acme, asked, lambda got: got["delivered"] == count)
    assert replay["handed_over"] == count
    return replay


def done(acme, asked, is_counted):
    """Wait until a replay is done and its counts are as expected, and return the replay."""
    assert asked.status == 201, asked.text
    path = f"/v1/replays/{asked.json['id']}"
    return assert_eventually(lambda: acme.get(path).json, lambda got: got["state"] == "done" and is_counted(got))
