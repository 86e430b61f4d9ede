"""Customers search their attempts of the last days over HTTP, the newest first."""

import datetime as dt

import pytest

from delivery.webhooks.policy import response_headers
from subscriptions_db.archive.ingest import writer
from subscriptions_db.archive.search import attempts
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


def test_a_rare_attempt_is_found_backwards_over_several_pages(acme, monkeypatch):
    last = acme.get("/v1/attempts?limit=4").json["next_cursor"]
    cursor = acme.get(f"/v1/attempts?cursor={last}").json["previous_cursor"]
    monkeypatch.setattr(attempts, "MAX_LOOKED_AT", 2)
    found = []
    while cursor is not None:
        page = acme.get(f"/v1/attempts?event_type=order.t4&cursor={cursor}").json
        found.append(events_of(page))
        cursor = page["previous_cursor"]
    assert found == [[], ["e4"], []]


def test_attempts_are_shown_with_their_endpoints(acme):
    page = acme.get("/v1/attempts?expand=endpoint").json
    own = {"endpoint": acme.get("/v1/endpoints/ep1").json}
    assert [item.pop("expanded") for item in page["items"]] == [{"endpoint": None}, own] * 2 + [{"endpoint": None}]
    assert page == acme.get("/v1/attempts").json


def test_attempts_are_counted_on_request(acme, monkeypatch):
    page = acme.get("/v1/attempts?limit=1&total=true&endpoint=ep1").json
    assert (page["total"], page["is_total_exact"]) == (2, True)
    monkeypatch.setattr(attempts, "MAX_EXAMINED", 5)
    page = acme.get("/v1/attempts?total=true").json
    assert (page["total"], page["is_total_exact"]) == (5, False)


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
