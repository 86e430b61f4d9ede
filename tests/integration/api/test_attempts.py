"""Customers search their attempts of the last days over HTTP, the newest first."""

import datetime as dt

import pytest

from delivery.webhooks.policy import response_headers
from subscriptions_db.archive.ingest import writer
from subscriptions_db.archive.search import attempts
from subscriptions_db.archive.search.archive_positions import PageStart, RecordPosition
from tests.integration.api import world
from tests.support import archive

pytestmark = pytest.mark.integration


def after(seconds):
    return archive.NOW + dt.timedelta(seconds=seconds)


ENDPOINTS = """
insert into endpoints (endpoint_id, customer_id, url) values
    ('ep1', 'acme', 'https://hooks.example.com/ep1'), ('ep9', 'other', 'https://hooks.other.example.com/')
"""


@pytest.fixture(scope="module")
def served(postgres):
    with world.served(postgres) as made:
        outcomes = [
            archive.outcome(customer="acme", endpoint=f"ep{n % 2}", event_type=f"order.t{n}", event_id=f"e{n}", at=after(n))
            for n in range(5)
        ]
        failed = response_headers.attach(outcomes[4].attempts[0], {"server": "nginx\0", "retry-after": "5"}, "away\0")
        outcomes[4] = outcomes[4]._replace(attempts=(failed,))
        others = archive.outcome(customer="other", endpoint="ep9", event_id="theirs")
        with made.registry() as opened:
            opened.execute("delete from attempts")
            opened.execute(ENDPOINTS)
            writer.write(opened, [archive.taken_attempts(0, *outcomes, others)], archive.KEPT, now=archive.NOW)
        yield made


def events(answer):
    assert answer.status == 200, answer.text
    return events_of(answer.json)


def events_of(page):
    return [item["event_id"] for item in page["items"]]


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ("", ["e4", "e3", "e2", "e1", "e0"]),
        ("endpoint=ep1", ["e3", "e1"]),
        ("event_type=order.t2", ["e2"]),
        ("event_type=user.*", []),
        ("status=500&accepted=false&error_class=server_error&limit=1", ["e4"]),
        ("accepted=true", []),
        (f"since={after(3):%Y-%m-%dT%H:%M:%SZ}", ["e4", "e3"]),
        (f"until={after(1):%Y-%m-%dT%H:%M:%SZ}", ["e0"]),
        ("q=AWAY", ["e4"]),
        ("q=e2", ["e2"]),
        ("url=example.com/ep1", ["e3", "e1"]),
        ("url=other.example.com", []),
    ],
)
def test_attempts_are_found_by_search_criteria(acme, asked, wanted):
    assert events(acme.get(f"/v1/attempts?{asked}")) == wanted


def test_a_cursor_continues_with_older_attempts(acme):
    found, cursor = [], ""
    while cursor is not None:
        page = acme.get(f"/v1/attempts?limit=2{cursor and f'&cursor={cursor}'}")
        found += events(page)
        cursor = page.json["next_cursor"]
    assert found == ["e4", "e3", "e2", "e1", "e0"]


def test_pages_lead_back_to_the_newest_attempts(acme):
    first = acme.get("/v1/attempts?limit=2").json
    second = acme.get(f"/v1/attempts?limit=2&cursor={first['next_cursor']}").json
    assert (first["previous_cursor"], [item["event_id"] for item in second["items"]]) == (None, ["e2", "e1"])
    back = acme.get(f"/v1/attempts?limit=2&cursor={second['previous_cursor']}").json
    assert (back["items"], back["previous_cursor"]) == (first["items"], None)
    third = acme.get(f"/v1/attempts?limit=2&cursor={second['next_cursor']}").json
    assert (events_of(third), third["next_cursor"]) == (["e0"], None)
    again = acme.get(f"/v1/attempts?limit=3&cursor={third['previous_cursor']}").json
    assert events_of(again) == ["e3", "e2", "e1"]
    assert events_of(acme.get(f"/v1/attempts?cursor={again['previous_cursor']}").json) == ["e4"]


BUSY = """
insert into attempts (started_at, customer_id, endpoint_id, webhook_id, event_id, event_type, attempt, duration_ms)
select %(at)s + n * interval '1 millisecond', 'busy', 'ep', 'msg_' || n, 'e' || n, 'order.t' || n, 1, 1.5
from generate_series(0, %(last)s) n
"""


@pytest.fixture(scope="module")
def busy(served):
    """Give the customer `busy` as many attempts after its oldest one as two pages examine; return the newest one's number."""
    last = 2 * attempts.MAX_LOOKED_AT
    with served.registry() as opened:
        opened.execute("insert into customers (customer_id) values ('busy')")
        opened.execute(BUSY, {"at": archive.NOW, "last": last})
    return last


def test_a_rare_attempt_is_found_backwards_over_several_pages(operator, busy):
    path = "/v1/attempts?customer=busy"
    [oldest] = operator.get(f"{path}&event_type=order.t0&until={after(0.001).isoformat().replace('+00:00', 'Z')}").json["items"]
    cursor = PageStart(RecordPosition.read(oldest["id"]), is_backwards=True).text()
    found = []
    while cursor is not None:
        page = operator.get(f"{path}&event_type=order.t{busy}&cursor={cursor}").json
        found.append(events_of(page))
        cursor = page["previous_cursor"]
    assert found == [[], [f"e{busy}"], []]


def test_attempts_are_shown_with_their_endpoints(acme):
    page = acme.get("/v1/attempts?expand=endpoint").json
    own = {"endpoint": acme.get("/v1/endpoints/ep1").json}
    assert [item.pop("expanded") for item in page["items"]] == [{"endpoint": None}, own] * 2 + [{"endpoint": None}]
    assert page == acme.get("/v1/attempts").json


def test_attempts_are_counted_on_request(acme):
    page = acme.get("/v1/attempts?limit=1&total=true&endpoint=ep1").json
    assert (page["total"], page["is_total_exact"]) == (2, True)


def test_a_total_counts_the_newest_attempts_only(operator, busy):
    assert busy >= attempts.MAX_EXAMINED
    page = operator.get("/v1/attempts?customer=busy&total=true").json
    assert (page["total"], page["is_total_exact"]) == (attempts.MAX_EXAMINED, False)


@pytest.mark.parametrize("cursor", ["YS4x", "Yi4x", "nonsense", "bC4x"])
def test_another_cursor_is_refused(acme, cursor):
    assert acme.get(f"/v1/attempts?cursor={cursor}").fields == ["cursor"]


def test_an_attempt_has_its_result_for_its_customer_only(acme, other):
    [newest] = acme.get("/v1/attempts?limit=1").json["items"]
    assert (newest["status"], newest["error_class"], newest["attempt"], newest["events"]) == (500, "server_error", 1, 1)
    assert newest["response_headers"] == {"server": "nginx\ufffd", "retry-after": "5"}
    assert events(other.get("/v1/attempts")) == ["theirs"]
    assert newest["response"] == "away\ufffd"
    theirs = other.get("/v1/attempts").json["items"][0]
    assert (theirs["response_headers"], theirs["response"]) == ({}, "")
