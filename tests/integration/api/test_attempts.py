"""Customers search their attempts of the last days over HTTP, the newest first."""

import datetime as dt

import pytest

from delivery.webhooks.policy import response_headers
from subscriptions_db.archive.ingest import writer
from tests.integration.api import world
from tests.support import archive

pytestmark = pytest.mark.integration


def after(seconds):
    return archive.NOW + dt.timedelta(seconds=seconds)


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
            writer.write(opened, [archive.taken_attempts(0, *outcomes, others)], archive.KEPT, now=archive.NOW)
        yield made


def events(answer):
    assert answer.status == 200, answer.text
    return [item["event_id"] for item in answer.json["items"]]


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


def test_an_attempt_has_its_result_for_its_customer_only(acme, other):
    [newest] = acme.get("/v1/attempts?limit=1").json["items"]
    assert (newest["status"], newest["error_class"], newest["attempt"], newest["events"]) == (500, "server_error", 1, 1)
    assert newest["response_headers"] == {"server": "nginx\ufffd", "retry-after": "5"}
    assert events(other.get("/v1/attempts")) == ["theirs"]
    assert newest["response"] == "away\ufffd"
    theirs = other.get("/v1/attempts").json["items"][0]
    assert (theirs["response_headers"], theirs["response"]) == ({}, "")
