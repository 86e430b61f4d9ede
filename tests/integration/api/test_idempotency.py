"""A change repeated with the same Idempotency-Key returns the first answer and changes nothing."""

import concurrent.futures

import pytest

from subscriptions_db.postgres import stored_answers

pytestmark = pytest.mark.integration

NEW = {"url": "https://hooks.acme.example.com/once"}


def count(client):
    return len(client.get("/v1/endpoints?limit=200").json["items"])


def test_a_repeated_request_gets_the_first_answer_without_secret(acme):
    before = count(acme)
    first = acme.post("/v1/endpoints", NEW, idempotency_key="k1")
    second = acme.post("/v1/endpoints", NEW, idempotency_key="k1")
    assert (first.status, second.status) == (201, 201)
    assert first.json["signing_secret"]
    assert second.json == first.json | {"signing_secret": None}
    assert second.headers["idempotency-replayed"] == "true"
    assert "idempotency-replayed" not in first.headers
    assert count(acme) == before + 1


def test_the_stored_answer_has_no_secret(acme, served):
    made = acme.post("/v1/endpoints", NEW, idempotency_key="k2").json
    rotated = acme.post(f"/v1/endpoints/{made['id']}/rotate-secret", {}, idempotency_key="k3").json
    with served.registry() as opened:
        kept = "".join(row["kept"] for row in opened.execute("select coalesce(answer::text, '') as kept from idempotency_keys"))
    assert made["id"] in kept
    assert made["signing_secret"] not in kept
    assert rotated["secret"] not in kept


@pytest.mark.parametrize("again", [NEW | {"max_in_flight": 1}, {"url": "https://hooks.acme.example.com/twice"}])
def test_an_idempotency_key_is_refused_for_another_request(acme, again):
    acme.post("/v1/endpoints", NEW, idempotency_key="k4")
    answer = acme.post("/v1/endpoints", again, idempotency_key="k4")
    assert answer.status == 422
    assert answer.fields == ["Idempotency-Key"]


def test_a_refused_request_does_not_use_its_key_up(acme):
    assert acme.post("/v1/endpoints", {"url": "ftp://x"}, idempotency_key="k5").status == 422
    assert acme.post("/v1/endpoints", NEW, idempotency_key="k5").status == 201


def test_idempotency_keys_of_two_customers_are_independent(acme, other):
    first = acme.post("/v1/endpoints", NEW, idempotency_key="k6").json
    second = other.post("/v1/endpoints", NEW, idempotency_key="k6").json
    assert first["id"] != second["id"]
    assert second["customer"] == "other"


def test_concurrent_equal_requests_change_once(acme):
    before = count(acme)
    with concurrent.futures.ThreadPoolExecutor(8) as at_once:
        answers = list(at_once.map(lambda _: acme.post("/v1/endpoints", NEW, idempotency_key="k7"), range(8)))
    assert {answer.status for answer in answers} == {201}
    assert len({answer.json["id"] for answer in answers}) == 1
    assert sum(answer.json["signing_secret"] is not None for answer in answers) == 1
    assert count(acme) == before + 1


def test_a_stored_answer_is_deleted_after_a_day(acme, served):
    first = acme.post("/v1/endpoints", NEW, idempotency_key="k8").json
    with served.registry() as opened:
        opened.execute("update idempotency_keys set created_at = now() - interval '25 hours'")
    assert acme.post("/v1/endpoints", NEW, idempotency_key="k8").json["id"] != first["id"]


PUT_OLDER = """
insert into idempotency_keys (customer_id, idempotency_key, request_digest, created_at)
select 'acme', 'older-' || n, sha256(''), now() - interval '26 hours' from generate_series(1, %s) n
"""


def test_a_request_deletes_old_answers_up_to_a_maximum(acme, served):
    """Regression: one request deleted all old answers. A key whose old answer is not deleted can be used all the same."""
    keys = ["old-1", "old-2", "old-3"]
    ids = [acme.post("/v1/endpoints", NEW, idempotency_key=key).json["id"] for key in keys]
    with served.registry() as opened:
        opened.execute("delete from idempotency_keys where idempotency_key <> all (%s)", [keys])
        opened.execute("update idempotency_keys set created_at = created_at - interval '25 hours'")
        opened.execute(PUT_OLDER, [stored_answers.MAX_DELETED - 1])
        again = acme.post("/v1/endpoints", {"url": "https://hooks.acme.example.com/other"}, idempotency_key="old-3")
        assert (again.status, again.json["id"] in ids) == (201, False)
        kept = opened.execute("select idempotency_key, answer ->> 'id' as id from idempotency_keys order by 1").fetchall()
    assert [tuple(row.values()) for row in kept] == [("old-2", ids[1]), ("old-3", again.json["id"])]


def test_a_repeated_deletion_has_no_body(acme):
    made = acme.post("/v1/endpoints", NEW).json
    for _ in range(2):
        answer = acme.delete(f"/v1/endpoints/{made['id']}", idempotency_key="k9")
        assert (answer.status, answer.text) == (204, b"")


def test_concurrent_changes_to_one_row_lose_nothing(acme):
    made = acme.post("/v1/endpoints", NEW).json
    changes = [{"max_in_flight": 7}, {"max_per_second": 2.5}, {"headers": {"X-Team": "a"}}, {"order_by": "id"}]
    with concurrent.futures.ThreadPoolExecutor(4) as at_once:
        assert {
            answer.status for answer in at_once.map(lambda fields: acme.patch(f"/v1/endpoints/{made['id']}", fields), changes)
        } == {200}
    shown = acme.get(f"/v1/endpoints/{made['id']}").json
    assert [{name: shown[name] for name in change} for change in changes] == changes
