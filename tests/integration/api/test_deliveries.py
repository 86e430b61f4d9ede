"""Customers search their recent deliveries over HTTP, the newest first, each with its status."""

import datetime as dt

import pytest

from delivery.model import OutcomeKind
from subscriptions_db.archive.ingest import writer
from subscriptions_db.archive.search import deliveries
from tests.integration.api import world
from tests.support import archive

pytestmark = pytest.mark.integration


def after(seconds):
    return archive.NOW + dt.timedelta(seconds=seconds)


@pytest.fixture(scope="module")
def served(postgres):
    with world.served(postgres) as made, made.registry() as opened:
        own = {"customer": "acme", "endpoint": "ep1"}
        given_up = archive.outcome(**own, event_id="e0", event_type="order.t0", at=after(0))
        failed = archive.outcome(**own, event_id="e1", event_type="order.t1", at=after(1))
        [first] = failed.attempts
        accepted = failed._replace(
            attempts=(first._replace(status=200, error_class=None, started_at_ms=first.started_at_ms + 500),)
        )
        skipped = archive.without_attempt(OutcomeKind.SKIPPED, "subscription_paused", **own, event_id="e2", tenant_id="t2")
        held = archive.without_attempt(OutcomeKind.POSTPONED, "circuit_open", customer="acme", endpoint="ep2", event_id="e3")
        batch = archive.batch_outcome(customer="acme", endpoint="ep2", rejected=[1], at=after(4))
        theirs = archive.outcome(customer="other", endpoint="ep9", event_id="theirs")
        opened.execute(
            "insert into endpoints (endpoint_id, customer_id, url) values ('ep2', 'acme', 'https://hooks.example.com/')"
        )
        opened.execute("delete from attempts")
        opened.execute("delete from dead_letters")
        taken = [
            archive.taken_attempts(0, given_up, failed, accepted, theirs),
            archive.taken_attempts(1, skipped, at=after(2)),
            archive.taken_attempts(2, held, at=after(3)),
            archive.taken_attempts(3, batch),
            *archive.taken_letters(100, given_up, batch, at=after(9)),
        ]
        writer.write(opened, taken, archive.KEPT, now=archive.NOW)
        yield made


ONE_PAGE = {"next_cursor": None, "previous_cursor": None, "total": None, "is_total_exact": None}


def names(answer):
    assert answer.status == 200, answer.text
    return [item["event_id"] or "batch" for item in answer.json["items"]]


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ("", ["batch", "e3", "e2", "e1", "e0"]),
        ("endpoint=ep2", ["batch", "e3"]),
        ("event_type=order.t1", ["e1"]),
        ("event_type=order.t*", ["e1", "e0"]),
        ("event_type=user.*", []),
        ("tenant=t2", ["e2"]),
        ("status=delivered", ["batch", "e1"]),
        ("status=waiting", ["e3"]),
        ("status=skipped&reason=subscription_paused", ["e2"]),
        ("status=dead_lettered", ["e0"]),
        ("reason=circuit_open&limit=1", ["e3"]),
        (f"since={after(3):%Y-%m-%dT%H:%M:%SZ}", ["batch", "e3"]),
        (f"until={after(1):%Y-%m-%dT%H:%M:%SZ}", ["e0"]),
        ("url=HOOKS.example", ["batch", "e3"]),
        ("url=hooks_example", []),
        ("q=ORDER.T1", ["e1"]),
        ("q=order.t0", ["e0"]),
    ],
)
def test_deliveries_are_found_by_search_criteria(acme, asked, wanted):
    assert names(acme.get(f"/v1/deliveries?{asked}")) == wanted


def test_a_delivery_is_shown_with_its_endpoint(acme):
    second = {"endpoint": acme.get("/v1/endpoints/ep2").json}
    page = acme.get("/v1/deliveries?expand=endpoint").json
    expanded = [(item["endpoint"], item.pop("expanded")) for item in page["items"]]
    assert expanded == [("ep2", second)] * 2 + [("ep1", {"endpoint": None})] * 3  # ep1 is not registered any more
    assert page == acme.get("/v1/deliveries").json
    path = f"/v1/deliveries/{page['items'][0]['webhook_id']}"
    assert acme.get(f"{path}?expand=endpoint").json == acme.get(path).json | {"expanded": second}


def test_a_cursor_continues_with_older_deliveries(acme):
    found, cursor = [], ""
    while cursor is not None:
        page = acme.get(f"/v1/deliveries?limit=2{cursor and f'&cursor={cursor}'}")
        found += names(page)
        cursor = page.json["next_cursor"]
    assert found == ["batch", "e3", "e2", "e1", "e0"]


@pytest.mark.parametrize("asked", ["", "&status=delivered", "&status=skipped"])
def test_pages_lead_back_to_the_newest_deliveries(acme, asked):
    pages, cursor = [], ""
    while cursor is not None:
        pages.append(acme.get(f"/v1/deliveries?limit=2{asked}{cursor and f'&cursor={cursor}'}").json)
        cursor = pages[-1]["next_cursor"]
    assert pages[0]["previous_cursor"] is None
    for earlier, later in zip(pages[-2::-1], pages[:0:-1], strict=True):
        back = acme.get(f"/v1/deliveries?limit=2{asked}&cursor={later['previous_cursor']}").json
        assert back["items"] == earlier["items"]
        assert acme.get(f"/v1/deliveries?limit=2{asked}&cursor={back['next_cursor']}").json["items"] == later["items"]


BUSY = """
insert into attempts (started_at, customer_id, endpoint_id, webhook_id, attempt, duration_ms)
select %(at)s + n * interval '1 millisecond', 'busy', 'ep', 'msg_' || n, 1, 1.5 from generate_series(0, %(last)s) n
"""


def test_deliveries_are_counted_on_request(acme):
    for asked, total in (("", 5), ("&status=delivered", 2), ("&url=hooks", 2), ("&q=none", 0)):
        page = acme.get(f"/v1/deliveries?limit=1&total=true{asked}").json
        assert (page["total"], page["is_total_exact"]) == (total, True)


def test_a_total_counts_the_newest_deliveries_only(served, operator):
    with served.registry() as opened:
        opened.execute("insert into customers (customer_id) values ('busy')")
        opened.execute(BUSY, {"at": archive.NOW, "last": deliveries.MAX_EXAMINED})
    page = operator.get("/v1/deliveries?customer=busy&total=true").json
    assert (page["total"], page["is_total_exact"]) == (deliveries.MAX_EXAMINED, False)


def test_an_unknown_status_is_refused(acme):
    assert acme.get("/v1/deliveries?status=postponed").fields == ["status"]


def test_a_delivery_has_its_status_and_its_dead_letter(acme):
    batch, held, skipped, accepted, given_up = acme.get("/v1/deliveries").json["items"]
    assert (batch["status"], batch["events"], batch["dead_letters"], batch["subscription"]) == ("delivered", 3, 1, None)
    assert (held["status"], held["attempts"], held["began_at"]) == ("waiting", 0, "2026-05-10T12:00:03Z")
    assert (skipped["status"], skipped["reason"], skipped["tenant"]) == ("skipped", "subscription_paused", "t2")
    assert (accepted["attempts"], accepted["reason"], accepted["newest_at"]) == (2, None, "2026-05-10T12:00:01.500000Z")
    assert (given_up["reason"], given_up["dead_letters"], given_up["dead_letter_state"]) == ("timeout", 1, "waiting")
    letter = acme.get(f"/v1/dead-letters/{given_up['dead_letter']}").json
    assert letter["record"]["webhook_id"] == given_up["webhook_id"]


def test_a_single_delivery_has_its_attempts(acme, other):
    [delivery] = acme.get("/v1/deliveries?event_type=order.t1").json["items"]
    story = acme.get(f"/v1/deliveries/{delivery['webhook_id']}").json
    assert story | delivery == story
    assert [(attempt["status"], attempt["error_class"]) for attempt in story["history"]] == [(200, None), (500, "server_error")]
    assert story["history"] == acme.get(f"/v1/attempts?webhook_id={delivery['webhook_id']}").json["items"]
    assert acme.get(f"/v1/deliveries?webhook_id={delivery['webhook_id']}").json == ONE_PAGE | {"items": [delivery]}
    assert other.get(f"/v1/deliveries/{delivery['webhook_id']}").status == 404
    assert names(other.get(f"/v1/deliveries?webhook_id={delivery['webhook_id']}")) == []


def test_a_delivery_without_attempts_has_an_empty_history(acme, other):
    [held] = acme.get("/v1/deliveries?status=waiting").json["items"]
    assert acme.get(f"/v1/deliveries/{held['webhook_id']}").json["history"] == []
    assert names(acme.get("/v1/attempts")) == ["batch", "e1", "e1", "e0"]
    assert names(other.get("/v1/deliveries")) == ["theirs"]
