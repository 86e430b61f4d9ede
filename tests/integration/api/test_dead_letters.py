"""Customers get their dead letters over HTTP: shared between pollers, with the payload byte for byte."""

import base64
import datetime as dt
import threading

import pytest

from subscriptions_db import answer_size
from tests.integration.api import world
from tests.integration.api.world import ids, in_background, lease, write
from tests.support import archive

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("emptied")]

CONSUMER = world.CONSUMER_PATH


def acknowledge(poller, answer):
    return poller.post(f"{CONSUMER}/ack", {"receipts": [item["receipt"] for item in answer.json["items"]]}).json["letters"]


def expired(served, answer):
    """Let the leases of an answer end now, as if their time had passed; return the answer."""
    with served.registry() as opened:
        ended = "update dead_letter_leases set until = now() - interval '1 second' where position = any(%s::bigint[])"
        opened.execute(ended, [ids(answer)])
    return answer


def test_two_pollers_share_all_dead_letters(served, poller):
    write(served, 25)
    everything, handled = ids(poller.get("/v1/dead-letters?limit=100")), []
    lock = threading.Lock()

    def poll():
        while ids(taken := lease(poller, limit=3)):
            done = acknowledge(poller, taken)
            assert done == ids(taken)
            with lock:
                handled.extend(done)

    both = [in_background(poll) for _ in range(2)]
    for finish in both:
        finish()
    assert sorted(handled) == everything
    assert len(everything) == 25


def test_the_list_is_paged_both_ways_and_counted(served, acme):
    write(served, 7)
    every = ids(acme.get("/v1/dead-letters?limit=100"))
    pages, cursor = [], ""
    while not pages or pages[-1]["has_more"]:
        pages.append(acme.get(f"/v1/dead-letters?limit=3&total=true{cursor and f'&cursor={cursor}'}").json)
        cursor = pages[-1]["next_cursor"]
    assert [len(page["items"]) for page in pages] == [3, 3, 1]
    assert (pages[0]["previous_cursor"], pages[0]["total"], pages[0]["is_total_exact"]) == (None, 7, True)
    for earlier, later in zip(pages[-2::-1], pages[:0:-1], strict=True):
        back = acme.get(f"/v1/dead-letters?limit=3&cursor={later['previous_cursor']}").json
        assert (back["items"], back["has_more"]) == (earlier["items"], True)
        assert acme.get(f"/v1/dead-letters?limit=3&cursor={back['next_cursor']}").json["items"] == later["items"]
    first = acme.get(f"/v1/dead-letters?cursor={pages[1]['previous_cursor']}").json
    assert (first["previous_cursor"], [item["id"] for item in first["items"]]) == (None, every[:3])


def test_the_list_is_searched_by_url_and_text_and_shows_endpoints(served, acme):
    write(served, 2)
    write(served, 1, event_type="user.gone")
    [last] = acme.get("/v1/dead-letters?q=USER.gone&expand=endpoint").json["items"]
    assert last["expanded"] == {"endpoint": acme.get("/v1/endpoints/acme-orders").json}
    assert ids(acme.get(f"/v1/dead-letters?q={last['record']['event_id']}"))[-1] == last["id"]
    assert ids(acme.get(f"/v1/dead-letters?q={last['record']['webhook_id']}")) == [last["id"]]
    assert ids(acme.get("/v1/dead-letters?q=event_id")) == ids(acme.get("/v1/dead-letters?url=nowhere")) == []
    assert len(ids(acme.get("/v1/dead-letters?url=HOOKS.acme"))) == 3
    assert acme.get("/v1/dead-letters/count?q=user.&url=acme").json == {"count": 1, "is_exact": True}


LARGE_ENDPOINT = """
insert into endpoints (endpoint_id, customer_id, url, description, metadata)
values ('large', 'acme', 'https://hooks.acme.example.com/', repeat('x', 2000), jsonb_build_object('x', repeat('x', 8000)))
"""


def test_endpoints_count_towards_the_bytes_of_a_page_in_both_directions(served, acme):
    """Four dead letters fit into one page, but not with their endpoints."""
    with served.registry() as opened:
        opened.execute(LARGE_ENDPOINT)
    write(served, 4, endpoint="large", data=b"x" * 190_500)
    whole = acme.get("/v1/dead-letters")
    assert (len(ids(whole)), whole.json["has_more"]) == (4, False)
    first = acme.get("/v1/dead-letters?expand=endpoint").json
    assert (0 < len(first["items"]) < 4, first["has_more"]) == (True, True)
    last = acme.get(f"/v1/dead-letters?cursor={first['next_cursor']}").json
    assert ids(whole) == [item["id"] for item in first["items"] + last["items"]]
    end = acme.get(f"/v1/dead-letters?cursor={last['next_cursor']}").json
    back = acme.get(f"/v1/dead-letters?expand=endpoint&cursor={end['previous_cursor']}").json
    assert [item["id"] for item in back["items"]] == ids(whole)[-len(back["items"]) :]
    assert (0 < len(back["items"]) < 4, back["previous_cursor"] is None) == (True, False)


def test_a_dead_letter_without_ack_is_leased_again(served, poller):
    write(served, 2)
    first = expired(served, lease(poller))
    again = lease(poller)
    assert ids(first) == ids(again)
    assert [item["times"] for item in again.json["items"]] == [2, 2]
    assert acknowledge(poller, first) == []  # another has them by now
    receipts = [item["receipt"] for item in again.json["items"]]
    assert poller.post(f"{CONSUMER}/nack", {"receipts": receipts[:1]}).json["letters"] == ids(again)[:1]
    assert poller.post(f"{CONSUMER}/nack", {"receipts": receipts[1:], "wait_s": 3600}).json["letters"] == ids(again)[1:]
    assert ids(lease(poller)) == ids(again)[:1]


def test_a_cursor_skips_and_repeats_no_dead_letter(served, poller):
    write(served, 5)
    found, path = [], "/v1/dead-letters?limit=2"
    cursor = ""
    for _ in range(3):
        page = poller.get(path + cursor)
        found += ids(page)
        cursor = f"&cursor={page.json['next_cursor']}"
    assert len(set(found)) == len(found) == 5
    assert ids(poller.get(path + cursor)) == []
    write(served, 1)
    assert len(ids(poller.get(path + cursor))) == 1


LARGE = b"x" * 300_000


def test_a_page_of_large_dead_letters_is_bounded_in_bytes(served, poller):
    """Regression: a page of 40 dead letters had 37.9 MB."""
    write(served, 7, data=LARGE)
    found, cursor = [], ""
    while True:
        page = poller.get(f"/v1/dead-letters?limit=100{cursor}")
        assert len(page.text) < 1.1 * answer_size.MAX_BYTES
        found += ids(page)
        if not page.json["has_more"]:
            break
        cursor = f"&cursor={page.json['next_cursor']}"
    assert len(set(found)) == len(found) == 7


def test_a_poll_leases_only_the_dead_letters_that_fit(served, poller):
    write(served, 5, data=LARGE)
    first = expired(served, lease(poller))
    second = lease(poller, limit=2)
    assert [len(ids(first)), len(ids(second))] == [2, 2]
    assert (first.json["has_more"], ids(first)) == (True, ids(second))
    rest = [lease(poller), lease(poller)]
    assert [len(ids(page)) for page in rest] == [2, 1]
    assert len({letter for page in (second, *rest) for letter in ids(page)}) == 5


def test_expired_leases_are_renewed_only_as_far_as_they_fit(served, poller):
    write(served, 3)
    write(served, 1, data=LARGE * 5)
    first, alone = (expired(served, lease(poller)) for _ in range(2))
    assert ids(alone) == ids(first)  # what was given before comes first, and the large one does not fit beside it
    assert (len(ids(first)), first.json["has_more"]) == (3, True)
    receipts = [item["receipt"] for item in alone.json["items"]]
    assert len(poller.post(f"{CONSUMER}/ack", {"receipts": receipts}).json["letters"]) == 3
    large = lease(poller)
    assert (len(ids(large)), large.json["items"][0]["times"]) == (1, 1)


def test_a_payload_comes_back_byte_for_byte(served, poller):
    write(served)
    [letter] = poller.get("/v1/dead-letters").json["items"]
    assert base64.b64decode(letter["payload_base64"]) == archive.PAYLOAD
    raw = poller.get(f"/v1/dead-letters/{letter['id']}/payload")
    assert raw.text == archive.PAYLOAD
    assert raw.headers["content-type"] == "application/octet-stream"
    assert raw.headers["x-content-type-options"] == "nosniff"
    assert letter["record"]["endpoint_id"] == "acme-orders"
    assert letter == poller.get(f"/v1/dead-letters/{letter['id']}").json


def test_dead_letters_are_found_by_search_criteria(served, poller):
    at = archive.NOW + dt.timedelta(hours=1)
    write(served, endpoint="a", reason="gone", event_type="order.made")
    write(served, endpoint="b", event_type="user.made", dead_lettered_at=at, tenant_id="t2")
    first, second = ids(poller.get("/v1/dead-letters"))
    for asked, wanted in {
        "endpoint=a": [first], "reason=gone": [first], "event_type=order.*": [first], "tenant=t2": [second],
        f"since={at:%Y-%m-%dT%H:%M:%SZ}": [second], f"until={at:%Y-%m-%dT%H:%M:%SZ}": [first], "endpoint=c": [],
    }.items():  # fmt: skip
        assert ids(poller.get(f"/v1/dead-letters?{asked}")) == wanted, asked


def test_a_dead_letter_is_redriven_or_discarded_once(served, acme):
    write(served, 2)
    first, second = ids(acme.get("/v1/dead-letters"))
    assert acme.post(f"/v1/dead-letters/{first}/discard").json["state"] == "discarded"
    assert acme.post(f"/v1/dead-letters/{first}/discard").status == 409
    assert acme.post(f"/v1/dead-letters/{first}/redrive").json["state"] == "redriving"
    for _ in range(2):
        answer = acme.post(f"/v1/dead-letters/{second}/redrive", idempotency_key=f"again-{second}")
        assert answer.json["state"] == "redriving"
    assert answer.headers["idempotency-replayed"] == "true"
    assert ids(lease(acme)) == []
    assert [(row["action"], row["after"]["state"]) for row in served.audit(first)] == [
        ("discard", "discarded"), ("redrive", "redriving")
    ]  # fmt: skip


def test_dead_letters_are_redriven_by_search_criteria(served, acme):
    write(served, 3, endpoint="a")
    write(served, 2, endpoint="b")
    write(served, customer="other")
    assert acme.post("/v1/dead-letters/redrive", {}).fields == ["everything"]
    assert acme.post("/v1/dead-letters/redrive", {"endpoint": "a", "everything": True}).fields == ["everything"]
    part = acme.post("/v1/dead-letters/redrive", {"endpoint": "a", "limit": 2}).json
    assert (part["count"], part["has_more"]) == (2, True)
    rest = acme.post("/v1/dead-letters/redrive", {"endpoint": "a", "cursor": part["next_cursor"]}).json
    assert (rest["count"], rest["has_more"]) == (1, False)
    assert acme.post("/v1/dead-letters/discard", {"everything": True}).json["count"] == 2
    with served.registry() as opened:
        states = opened.execute("select customer_id, state, count(*) from dead_letters group by 1, 2 order by 1, 2").fetchall()
    assert [tuple(row.values()) for row in states] == [
        ("acme", "discarded", 2), ("acme", "redriving", 3), ("other", "waiting", 1)
    ]  # fmt: skip
    assert served.audit("acme")[-1]["after"]["count"] == 2


def test_recovering_an_endpoint_does_not_enable_it(served, acme):
    later = archive.NOW + dt.timedelta(hours=1)
    write(served, 1)
    write(served, 3, dead_lettered_at=later)
    write(served, 1, endpoint="another", dead_lettered_at=later)
    path, asked = "/v1/endpoints/acme-orders", {"since": later.isoformat(), "limit": 2}
    part = acme.post(f"{path}/recover", asked).json
    assert (part["count"], part["has_more"], part["status"], part["detail"]) == (2, True, "active", "")
    assert acme.post(f"{path}/disable", {"reason": "in repair"}).status == 200
    rest = acme.post(f"{path}/recover", asked | {"cursor": part["next_cursor"]}).json
    assert (rest["count"], rest["has_more"], rest["status"]) == (1, False, "disabled")
    assert "until it is enabled" in rest["detail"]
    assert acme.post(f"{path}/enable").json["status"] == "active"
    assert len(ids(acme.get("/v1/dead-letters"))) == 2
    assert acme.post(f"{path}/recover", {}).fields == ["since"]
    assert served.audit("acme-orders")[0]["after"]["count"] == 2


def test_a_consumer_is_created_moved_and_deleted(served, acme, poller):
    write(served, 3)
    wanted = {"name": "late", "event_type": "*", "to": "end"}
    made = acme.post("/v1/dead-letter-consumers", wanted)
    assert (made.status, made.json["event_type"], made.json["unacknowledged"]) == (201, "*", 0)
    assert acme.post("/v1/dead-letter-consumers", wanted).fields == ["name"]
    assert acme.post("/v1/dead-letter-consumers", {"name": "long", "reason": "x" * 65}).fields == ["reason"]
    path = "/v1/dead-letter-consumers/late"
    assert ids(poller.post(f"{path}/lease", {})) == []
    first = poller.get("/v1/dead-letters?limit=1").json
    for place, count in (
        ({"cursor": first["next_cursor"]}, 2),
        ({"to": "beginning"}, 3),
        ({"since": "2026-01-01T00:00:00Z"}, 3),
    ):
        assert acme.post(f"{path}/seek", place).status == 200
        assert len(ids(poller.post(f"{path}/lease", {}))) == count
    assert acme.get(path).json["unacknowledged"] == 3
    assert acme.post(f"{path}/seek", {"to": "end", "cursor": first["next_cursor"]}).fields == ["to", "cursor"]
    assert acme.post(f"{path}/seek", {}).status == 422
    assert [row["name"] for row in poller.get("/v1/dead-letter-consumers").json["items"]] == ["billing", "late"]
    assert acme.delete(path).status == 204
    assert poller.post(f"{path}/lease", {}).status == poller.post(f"{path}/ack", {"receipts": []}).status == 404


def test_the_consumers_of_a_customer_are_bounded(postgres):
    with world.served(postgres, max_consumers_per_customer=2) as served:
        acme, operator = (served.client(served.keys[name]) for name in ("acme", "operator"))
        assert [acme.post("/v1/dead-letter-consumers", {"name": f"c{number}"}).status for number in range(2)] == [201, 429]
        assert operator.post("/v1/dead-letter-consumers?customer=acme", {"name": "c2"}).status == 201


def test_the_operator_names_the_customer(served, operator):
    write(served)
    assert operator.get("/v1/dead-letters").fields == ["customer"]
    [letter] = ids(operator.get("/v1/dead-letters?customer=acme"))
    assert operator.get(f"/v1/dead-letters/{letter}?customer=other").status == 404
    key = {"idempotency_key": "op-1"}
    assert operator.post("/v1/dead-letters/redrive?customer=other", {"everything": True}, **key).json["count"] == 0
    assert operator.post("/v1/dead-letters/redrive?customer=acme", {"everything": True}, **key).status == 422
    assert operator.post(f"/v1/dead-letters/{letter}/redrive?customer=acme").json["state"] == "redriving"


@pytest.mark.parametrize("cursor", ["bm8", "x", "bC4tMQ"])
def test_an_invented_cursor_is_refused(acme, cursor):
    for path in ("/v1/dead-letters", "/v1/attempts", "/v1/deliveries"):
        assert acme.get(f"{path}?cursor={cursor}").fields == ["cursor"]


@pytest.mark.parametrize("receipt", ["bm8", "x", "bC4tMQ", "é", "c" * 500])
@pytest.mark.parametrize("how", ["ack", "nack", "extend"])
def test_a_bad_receipt_handle_refuses_only_itself(served, poller, receipt, how):
    """Regression: one bad receipt handle refused the whole request, so a poller could not ack the other dead letters."""
    write(served, 1)
    leased = lease(poller).json["items"]
    assert leased
    asked = {"receipts": [receipt, *(item["receipt"] for item in leased), receipt]} | (
        {"lease_s": 9} if how == "extend" else {}
    )
    answer = poller.post(f"{CONSUMER}/{how}", asked)
    assert (answer.status, answer.json["letters"]) == (200, [item["id"] for item in leased])
    assert [result["index"] for result in answer.json["refused"]] == [0, 2]
    assert all(result["problem"].startswith("is not a valid receipt") for result in answer.json["refused"])


def test_an_answer_has_the_result_of_each_receipt_handle(served, poller):
    write(served, 3)
    first = [item["receipt"] for item in expired(served, lease(poller, limit=1)).json["items"]]
    leased = lease(poller).json["items"]
    receipts, letters = [item["receipt"] for item in leased], [item["id"] for item in leased]
    extended = poller.post(f"{CONSUMER}/extend", {"receipts": [*first, *receipts[:2]], "lease_s": 1000}).json
    assert [result.pop("leased_until") is None for result in extended["results"]] == [True, False, False]
    assert extended["results"] == [
        {"index": 0, "result": "refused", "letter": None, "reason": "leased_again"},
        {"index": 1, "result": "extended", "letter": letters[0], "reason": None},
        {"index": 2, "result": "extended", "letter": letters[1], "reason": None},
    ]
    assert poller.post(f"{CONSUMER}/ack", {"receipts": receipts[:1]}).json["letters"] == letters[:1]
    acked = poller.post(f"{CONSUMER}/ack", {"receipts": ["x", *receipts[:2], *first]}).json
    assert acked["letters"] == letters[1:2]
    assert [(result["index"], result["result"], result["reason"]) for result in acked["results"]] == [
        (0, "refused", "invalid"), (1, "refused", "not_leased"), (2, "acknowledged", None), (3, "refused", "not_leased")
    ]  # fmt: skip
    returned = poller.post(f"{CONSUMER}/nack", {"receipts": receipts[2:]}).json
    assert [(result["result"], result["letter"]) for result in returned["results"]] == [("returned", letters[2])]
    assert poller.post(f"{CONSUMER}/extend", {"receipts": receipts}).fields == ["lease_s"]
    assert poller.post(f"{CONSUMER}/extend", {"receipts": receipts, "lease_s": 43_201}).fields == ["lease_s"]


@pytest.mark.parametrize("lease_s", [0, 0.5, 0.999])
def test_a_lease_of_less_than_a_second_is_refused(served, poller, lease_s):
    """Regression: a lease of 0 s ended before its poller had the answer, so each poller got the same dead letters."""
    write(served)
    assert lease(poller, lease_s=lease_s).fields == ["lease_s"]
    receipts = [item["receipt"] for item in lease(poller, lease_s=1).json["items"]]
    assert poller.post(f"{CONSUMER}/extend", {"receipts": receipts, "lease_s": lease_s}).fields == ["lease_s"]
    assert len(poller.post(f"{CONSUMER}/nack", {"receipts": receipts, "wait_s": 0}).json["letters"]) == 1


def test_dead_letters_are_parked_listed_and_unparked(served, acme, poller):
    write(served, 3)
    path = "/v1/dead-letter-consumers/careful"
    assert acme.post("/v1/dead-letter-consumers", {"name": "careful", "max_receives": 1}).json["max_receives"] == 1
    for wrong in (0, 1001, "many"):
        assert acme.patch(path, {"max_receives": wrong}).fields == ["max_receives"]
    given = ids(expired(served, poller.post(f"{path}/lease", {})))
    assert ids(poller.post(f"{path}/lease", {})) == []
    page = poller.get(f"{path}/parked?limit=2").json
    rest = poller.get(f"{path}/parked?limit=2&cursor={page['next_cursor']}").json
    assert [item["id"] for item in page["items"] + rest["items"]] == given
    assert (page["has_more"], rest["has_more"], page["items"][0]["times"]) == (True, False, 1)
    back = poller.get(f"{path}/parked?limit=2&total=true&cursor={rest['previous_cursor']}").json
    assert (back["items"], back["next_cursor"], page["previous_cursor"]) == (page["items"], page["next_cursor"], None)
    before = poller.get(f"{path}/parked?limit=2&cursor={back['previous_cursor']}").json
    assert (before["items"], before["previous_cursor"]) == ([], None)
    assert (back["total"], back["is_total_exact"], page["total"]) == (3, True, None)
    assert ids(poller.get(f"{path}/parked?q=%25&endpoint=acme-orders")) == []
    assert ids(acme.get(f"{path}/parked?url=ACME.example&event_type=order.*")) == given
    for body, problem in (({}, "is missing"), ({"letters": given, "everything": True}, "is given beside everything")):
        refused = acme.post(f"{path}/unpark", body)
        assert refused.fields == ["letters"]
        assert refused.json["errors"][0]["problem"].startswith(problem)
    assert acme.post(f"{path}/unpark", {"letters": ["9" * 19, given[0]]}).json == {"letters": given[:1], "has_more": False}
    assert acme.post(f"{path}/unpark", {"everything": True}).json["letters"] == given[1:]
    assert poller.get(f"{path}/parked").json["items"] == []
    assert acme.patch(path, {"max_receives": None}).json["max_receives"] is None
    again = expired(served, poller.post(f"{path}/lease", {}))
    assert ids(again) == ids(poller.post(f"{path}/lease", {})) == given
    assert [row["action"] for row in served.audit("careful")] == ["create", "unpark", "unpark", "update"]


def test_an_answer_says_how_many_dead_letters_wait(served, acme, poller):
    write(served, 3)
    write(served, 2, endpoint="b")
    assert poller.get("/v1/dead-letters/count").json == {"count": 5, "is_exact": True}
    assert poller.get("/v1/dead-letters/count?endpoint=b").json["count"] == 2
    assert poller.get("/v1/dead-letters/count?state=waiting").fields == ["state"]
    made = acme.post("/v1/dead-letter-consumers", {"name": "counted", "max_receives": 1}).json
    assert (made["waiting"], made["leased"], made["parked"]) == (5, 0, 0)
    path = "/v1/dead-letter-consumers/counted"
    expired(served, poller.post(f"{path}/lease", {"limit": 1}))
    poller.post(f"{path}/lease", {"limit": 3})
    found = poller.get(path).json
    assert (found["waiting"], found["leased"], found["parked"], found["unacknowledged"]) == (1, 3, 1, 3)
    assert (found["waiting_is_exact"], found["parked_is_exact"]) == (True, True)
    assert found in poller.get("/v1/dead-letter-consumers").json["items"]
