"""Authenticate API keys by their digests, and limit the rate of requests with one key."""

import asyncio
import collections
import contextlib
import datetime as dt
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from delivery.webhooks.scheduling import limits
from subscriptions_db import server_bounds
from subscriptions_db.api.admission import admission
from subscriptions_db.api.contract import keys, problems
from subscriptions_db.api.contract.principals import Principal, Scope
from subscriptions_db.api.server.route_table import ROUTES
from tests.support.fakes import Clock

NOW = dt.datetime(2026, 5, 1, tzinfo=dt.UTC)
TEXT = "fk_abcdefghijkl_" + "x" * 43
ROW = {
    "key_id": "fk_abcdefghijkl", "customer_id": "acme", "scope": "read_only", "digest": keys.digest_of(TEXT),
    "expires_at": None, "revoked_at": None, "tenants": None, "endpoints": None,
}  # fmt: skip
LIMITED = {"digest": keys.digest_of(TEXT, is_limited=True)}
READ = next(route for route in ROUTES if route.name == "listEndpoints")
WRITE = next(route for route in ROUTES if route.name == "createEndpoint")


@pytest.mark.parametrize(
    ("row", "text", "is_known"),
    [
        (ROW, TEXT, True),
        (ROW, TEXT[:-1] + "y", False),
        (ROW | {"expires_at": NOW + dt.timedelta(seconds=1)}, TEXT, True),
        (ROW | {"expires_at": NOW}, TEXT, False),
        (ROW | {"revoked_at": NOW - dt.timedelta(days=1)}, TEXT, False),
        (ROW | {"scope": "of a newer version"}, TEXT, False),
        (None, TEXT, False),
    ],
)
def test_a_valid_key_is_authenticated(row, text, is_known):
    principal = keys.authenticate(row, text, NOW)
    if is_known:
        assert principal == Principal("fk_abcdefghijkl", "acme", Scope.READ_ONLY, expires_at=row["expires_at"])
        assert principal.endpoint_ids == ""
    else:
        assert principal is None


def test_a_limited_key_names_its_endpoints():
    principal = keys.authenticate(ROW | LIMITED | {"endpoints": ["ep_2", "ep_1"]}, TEXT, NOW)
    assert (principal.endpoints, principal.endpoint_ids) == ({"ep_1", "ep_2"}, "ep_1,ep_2")


@pytest.mark.parametrize("limit", [{"endpoints": ["ep_1"]}, {"tenants": ["t1"], "scope": "publisher", "customer_id": None}])
def test_a_version_without_limits_refuses_a_limited_key(limit):
    """Regression: the version before took a limited key for a key of the whole customer."""
    assert keys.authenticate(ROW | LIMITED | limit, TEXT, NOW) is not None
    assert keys.authenticate(ROW | LIMITED, TEXT, NOW) is None  # what such a version reads
    assert keys.authenticate(ROW | limit, TEXT, NOW) is None


def test_a_registrar_reaches_the_registry_and_no_delivery():
    reached = {route.name for route in ROUTES if Scope.REGISTRAR in route.scopes}
    assert reached == {
        "listEndpoints", "createEndpoint", "getEndpoint", "updateEndpoint", "deleteEndpoint", "pauseEndpoint", "resumeEndpoint",
        "disableEndpoint", "enableEndpoint", "rotateSecret", "changeEndpoints", "createEndpoints", "testEndpoint",
        "validateEndpoint", "explainForEndpoint",
        "listSubscriptions", "createSubscription", "getSubscription", "updateSubscription", "deleteSubscription",
        "pauseSubscription", "resumeSubscription", "explainForSubscription", "listEventTypes", "getEventType", "getCustomer",
    }  # fmt: skip


def test_a_write_only_key_reaches_changes_and_reads_nothing():
    reached = {route.name for route in ROUTES if Scope.WRITE_ONLY in route.scopes}
    of_customers = {route.name for route in ROUTES if Scope.CUSTOMER_ADMIN in route.scopes and route.is_change}
    assert reached == of_customers - {"rotateSecret"} | {"validateEndpoint"}
    answering = [route for route in ROUTES if route.name in reached and route.is_answer_progress]
    assert {route.name: set(route.answer.model_fields) for route in answering} == {
        "changeEndpoints": {"action", "dry_run", "changed", "items", "next_cursor"},
        "createEndpoints": {"dry_run", "created", "items"},
        "validateEndpoint": {"state", "permitted_per_minute", "reason"},
        "redriveDeadLetters": {"count", "next_cursor", "has_more"},
        "discardDeadLetters": {"count", "next_cursor", "has_more"},
        "recoverEndpoint": {"count", "next_cursor", "has_more", "status", "detail"},
        "unparkDeadLetters": {"letters", "has_more"},
    }


@pytest.mark.parametrize("text", ["", "x", TEXT[:-1], TEXT + "x", TEXT.upper(), TEXT.replace("fk", "pk"), TEXT + "\n"])
def test_a_malformed_key_has_no_key_id(text):
    assert keys.key_id_of(text) is None


def test_key_digests_are_compared_in_constant_time():
    source = Path(keys.__file__).read_text()
    assert re.findall(r"digest\w*\(?\w*\)? (?:==|!=)|(?:==|!=) \w*digest", source) == []
    assert "hmac.compare_digest" in source


@dataclass
class Registry:
    """A registry with one API key, and the number of queries for keys."""

    row: dict | None = field(default_factory=lambda: dict(ROW))
    asked: int = 0

    async def read(self, key_id):
        self.asked += 1
        return self.row if self.row and key_id == self.row["key_id"] else None


def admit(admitted, route=READ, text=f"Bearer {TEXT}"):
    try:
        return asyncio.run(admitted.admit(text, route))
    except problems.Refused as exc:
        return exc.problem.status


def test_a_revoked_key_is_refused_within_five_seconds():
    registry, clock = Registry(), Clock()
    admitted = admission.Admission(registry.read, max_per_s=100, clock=clock)
    assert admit(admitted).key_id == "fk_abcdefghijkl"
    registry.row["revoked_at"] = NOW
    clock.now += 4.99
    assert admit(admitted) == 401


def test_look_ups_of_a_revoked_key_are_limited_like_those_of_an_unknown_one():
    """Regression: a key that was valid once was looked up at each request, without a limit, for ever."""
    registry, clock = Registry(), Clock()
    admitted = admission.Admission(registry.read, max_per_s=1000, clock=clock, max_unknown_keys_per_s=10.0)
    admit(admitted)
    registry.row["revoked_at"] = NOW
    clock.now += 4
    statuses = [admit(admitted) for _ in range(100)]
    assert (set(statuses), statuses[-1]) == ({401, 429}, 429)
    assert registry.asked <= 1 + 1 + 2


def test_a_cached_key_is_not_read_from_postgres_again():
    registry = Registry()
    admitted = admission.Admission(registry.read, max_per_s=100, clock=Clock())
    for _ in range(3):
        admit(admitted)
    assert registry.asked == 1


@pytest.mark.parametrize(
    "text", [None, "", "Bearer", "Bearer ", f"Basic {TEXT}", f"Bearer {TEXT}x", f"Bearer {TEXT[:-1]}y", "ä"]
)
def test_a_request_without_a_valid_key_gets_401(text):
    assert admit(admission.Admission(Registry().read, max_per_s=100), text=text) == 401


def test_a_route_outside_the_scope_of_the_key_gets_403():
    admitted = admission.Admission(Registry().read, max_per_s=100)
    assert admit(admitted, WRITE) == 403
    poller = Registry()
    poller.row["scope"] = "poller"
    for route in ROUTES:
        refused = admit(admission.Admission(poller.read, max_per_s=1000), route) == 403
        assert refused == (Scope.POLLER not in route.scopes)


def test_a_costly_request_counts_as_many():
    bulk = next(route for route in ROUTES if route.name == "changeEndpoints")
    clock, admin = Clock(), Registry(ROW | {"scope": "customer_admin"})
    admitted = admission.Admission(admin.read, max_per_s=100, clock=clock)
    answers = [admit(admitted, bulk) for _ in range(2)]
    assert (answers[0].scope, answers[1]) == ("customer_admin", 429)
    clock.now += 25 / 80
    assert admit(admitted, bulk).scope == "customer_admin"


def test_a_large_body_counts_as_many_requests():
    """Regression: a change of 30,000 tenants, which takes Postgres two seconds, counted as one request."""
    clock = Clock()
    admitted = admission.Admission(Registry().read, max_per_s=100, clock=clock)
    key_id = admit(admitted).key_id
    admitted.charge_body(key_id, admission.BYTES_PER_REQUEST - 1)
    assert admit(admitted).key_id == key_id
    admitted.charge_body(key_id, 60 * admission.BYTES_PER_REQUEST)
    admitted.charge_body(key_id, 100 * admission.BYTES_PER_REQUEST, charged=60 * admission.BYTES_PER_REQUEST)
    assert admit(admitted) == 429
    clock.now += (100 + 2 - 19) / 80  # of 102 requests, 20 may come at once, and the rest at 80 a second
    assert admit(admitted).key_id == key_id


def test_requests_above_the_rate_of_a_key_get_429():
    clock = Clock()
    admitted = admission.Admission(Registry().read, max_per_s=10, clock=clock)
    began = clock.now
    answered = 0
    while clock.now < began + 10:
        answered += admit(admitted) != 429
        clock.now += 0.01
    assert 80 <= answered <= 85  # two at once, and then eight a second: never more than ten in any second


def test_a_key_shows_the_limit_that_applies():
    clock, rates = Clock(), []
    admitted = admission.Admission(Registry().read, max_per_s=10, clock=clock)
    for _ in range(3):
        with contextlib.suppress(problems.Refused):
            asyncio.run(admitted.admit(f"Bearer {TEXT}", READ, rates.append))
        rates[-1] = rates[-1].room()
    assert [(room.limit, room.remaining) for room in rates] == [(2, 1), (2, 0), (2, 0)]


PUBLISH = next(route for route in ROUTES if route.name == "publishEvents")


def test_events_above_the_rate_of_a_publishers_key_get_429():
    clock, publisher = Clock(), Registry(ROW | LIMITED | {"customer_id": None, "scope": "publisher", "tenants": ["t1"]})
    admitted = admission.Admission(publisher.read, max_per_s=1, max_events_per_s=100, clock=clock)
    principal = admit(admitted, PUBLISH)
    assert principal.tenants == {"t1"}
    admitted.charge(principal.key_id).events(100)
    assert admit(admitted, PUBLISH) == 429
    assert admit(admitted, READ) == 403  # the rate of requests is another
    assert admit(admitted, READ) == 429
    clock.now += (100 - 19) / 80  # of 100 events, 20 may come at once, and the rest at 80 a second
    assert admit(admitted, PUBLISH).key_id == principal.key_id


def test_publishing_requests_above_their_own_rate_get_429():
    clock, publisher = Clock(), Registry(ROW | {"customer_id": None, "scope": "publisher"})
    admitted = admission.Admission(publisher.read, max_per_s=1, max_publishing_requests_per_s=10, clock=clock)
    answers = [admit(admitted, PUBLISH) for _ in range(3)]
    assert (answers[0].scope, answers[1].scope, answers[2]) == ("publisher", "publisher", 429)
    clock.now += 1 / 8
    assert admit(admitted, PUBLISH).scope == "publisher"


def publish(admitted, events):
    """Admit a request that publishes this number of events; return its status and its headers."""
    request, status = {}, 202
    try:
        principal = asyncio.run(admitted.admit(f"Bearer {TEXT}", PUBLISH, admission.noted_by(request)))
        admitted.charge(principal.key_id).events(events)
    except problems.Refused as exc:
        status = exc.problem.status
    return status, admission.key_headers(request)


def publish_until_refused(admitted, events):
    """Publish until the first 429; return the headers of each answer."""
    answers = [publish(admitted, events)]
    while answers[-1][0] == 202:
        answers.append(publish(admitted, events))
    assert answers[-1][0] == 429
    return [headers for _, headers in answers]


@pytest.mark.parametrize(("max_requests", "max_events", "limit"), [(500, 10_000, 100), (500, 250, 50), (100, 100, 20)])
def test_the_limit_in_the_headers_is_the_one_that_refuses_a_publisher(max_requests, max_events, limit):
    """Regression: at 429 for the 101st request, `RateLimit-Remaining` said 1900, the events that were left."""
    publisher = Registry(ROW | {"customer_id": None, "scope": "publisher"})
    rates = {"max_events_per_s": max_events, "max_publishing_requests_per_s": max_requests}
    clock = Clock(0.0)  # a monotonic clock has small readings: at 1.7e9 s the rounding of 100 sums is a token
    shown = publish_until_refused(admission.Admission(publisher.read, max_per_s=1, clock=clock, **rates), 1)
    assert {headers["ratelimit-limit"] for headers in shown} == {str(limit)}
    assert [int(headers["ratelimit-remaining"]) for headers in shown] == [*reversed(range(limit)), 0]


def test_a_publisher_of_batches_sees_that_its_events_are_used_up():
    publisher = Registry(ROW | {"customer_id": None, "scope": "publisher"})
    shown = publish_until_refused(admission.Admission(publisher.read, max_per_s=1, clock=Clock()), 1000)
    assert [(headers["ratelimit-limit"], headers["ratelimit-remaining"]) for headers in shown] == [
        ("100", "99"), ("2000", "0"), ("2000", "0"),
    ]  # fmt: skip


def test_a_publishing_request_counts_the_largest_of_its_events_kib_and_cpu_time():
    clock = Clock()
    pace = limits.Pace(100, admission.BURST_SHARE)

    def counted(charge):
        before = pace.room(clock.now).full_in_s
        charge()
        return round((pace.room(clock.now).full_in_s - before) * 80)  # 80 a second come back

    pace.consume(clock.now, 21)  # the first event of the request is the last of these
    charge = admission.EventCharge(pace, clock)
    assert counted(lambda: charge.events(1)) == 0
    assert counted(lambda: charge.body(5 * 1024 + 1)) == 5
    assert counted(lambda: charge.body(6 * 1024)) == 0
    assert counted(lambda: charge.events(10)) == 4
    assert counted(lambda: charge.cpu(0.25)) == 40
    assert counted(lambda: charge.events(50)) == 0


def test_a_429_says_in_retry_after_when_to_try_again():
    admitted = admission.Admission(Registry().read, max_per_s=0.1, clock=Clock())
    admit(admitted)
    with pytest.raises(problems.Refused) as refused:
        asyncio.run(admitted.admit(f"Bearer {TEXT}", READ))
    assert refused.value.headers == {"retry-after": "10"}


def test_invented_keys_do_not_keep_a_known_key_out():
    registry, clock = Registry(), Clock()
    admitted = admission.Admission(registry.read, max_per_s=1000, clock=clock)
    admit(admitted)

    def made_up(count):
        texts = ("fk_" + "".join("abcdefgh"[(number >> 3 * place) & 7] for place in range(12)) for number in range(count))
        return collections.Counter(admit(admitted, text=f"Bearer {text}_{'x' * 43}") for text in texts)

    answers = made_up(1000)
    assert answers.keys() == {401, 429}
    assert registry.asked == 1 + answers[401] < admission.MAX_UNKNOWN_KEYS_PER_S
    clock.now += server_bounds.DEFAULT.key_cache_s  # it has to be looked up again
    made_up(1000)
    assert admit(admitted).key_id == "fk_abcdefghijkl"
