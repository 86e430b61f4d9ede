"""Every change over the HTTP API has an audit entry with the API key. A new route must be added to this file."""

import tracemalloc

import pytest

from subscriptions_db.api.contract import cursors
from subscriptions_db.api.registry import audit_log
from subscriptions_db.api.server.route_table import ROUTES
from subscriptions_db.registration import endpoint_status
from tests.integration.api import world
from tests.integration.api.test_isolation import BODIES, OF_ACME

pytestmark = pytest.mark.integration

CHANGES = {route.name: route for route in ROUTES if route.is_change}
TENANT, CUSTOMER, TYPE = ({name: "short-lived"} for name in ("tenant_id", "customer_id", "event_type_id"))
LETTERS = [str(int(world.LETTER) + number) for number in range(3)]
IN_ORDER = [
    ("putTenant", TENANT, {"name": "Five"}), ("deleteTenant", TENANT, None),
    ("putCustomer", CUSTOMER, {"name": "Six"}), ("deleteCustomer", CUSTOMER, None),
    ("putEventType", TYPE, {"json_schema": {"type": "object"}}), ("deleteEventType", TYPE, None),
    ("createEndpoint", {}, BODIES["createEndpoint"]), ("createEndpoints", {}, BODIES["createEndpoints"]),
    ("updateEndpoint", {}, BODIES["updateEndpoint"]),
    ("pauseEndpoint", {}, None), ("resumeEndpoint", {}, None),
    ("disableEndpoint", {}, BODIES["disableEndpoint"]), ("enableEndpoint", {}, None), ("rotateSecret", {}, None),
    ("changeEndpoints", {}, BODIES["changeEndpoints"]), ("resumeEndpoint", {}, None),
    ("createSubscription", {}, {"endpoint": "acme-orders", "event_type": "*", "tenants": ["t1"]}),
    ("updateSubscription", {}, {"everything": False, "except_tenants": [], "tenants": ["t1"]}),
    ("pauseSubscription", {}, None), ("resumeSubscription", {}, None),
    ("createConsumer", {}, BODIES["createConsumer"]), ("seekConsumer", {}, BODIES["seekConsumer"]),
    ("updateConsumer", {}, BODIES["updateConsumer"]), ("unparkDeadLetters", {}, BODIES["unparkDeadLetters"]),
    ("deleteConsumer", {}, None),
    ("redriveDeadLetter", {"letter_id": LETTERS[0]}, None), ("discardDeadLetter", {"letter_id": LETTERS[1]}, None),
    ("redriveDeadLetters", {}, BODIES["redriveDeadLetters"]), ("discardDeadLetters", {}, BODIES["discardDeadLetters"]),
    ("cancelReplay", {}, None), ("createReplay", {}, BODIES["createReplay"]),
    ("recoverEndpoint", {}, BODIES["recoverEndpoint"]), ("resendAttempt", {}, None),
    ("deleteSubscription", {}, None), ("deleteEndpoint", {}, None),
]  # fmt: skip
CREATING_PUTS = {"putTenant", "putCustomer", "putEventType"}
OPERATORS = {"putTenant", "deleteTenant", "putCustomer", "deleteCustomer", "putEventType", "deleteEventType"}


@pytest.fixture(scope="module", autouse=True)
def _letters(served):
    with served.registry() as opened:
        world.letters(opened, len(LETTERS) - 1)


def entries(served):
    with served.registry() as opened:
        return opened.execute("select entry_id, key_id from audit_log order by entry_id").fetchall()


@pytest.mark.parametrize(("name", "ids", "body"), IN_ORDER, ids=[name for name, *_ in IN_ORDER])
def test_a_change_has_an_audit_entry_with_its_api_key(served, name, ids, body):
    key = served.keys["operator" if name in OPERATORS else "acme"]
    route, before = CHANGES[name], entries(served)
    answer = served.client(key).ask(route.method, route.path.format(**OF_ACME | ids), body)
    assert answer.status == (201 if name in CREATING_PUTS else route.status), answer.text
    added = entries(served)[len(before) :]
    assert added
    assert {entry["key_id"] for entry in added} == {"_".join(key.split("_")[:2])}


def test_only_the_operator_sees_the_login_of_an_audit_entry(served, acme, other, operator):
    with served.registry() as opened:
        endpoint_status.disable(opened, "other-orders", "moving")
    [seen] = other.get("/v1/audit-log").json["items"]
    assert (seen["key_id"], seen["login"], seen["entity_id"]) == ("command", None, "other-orders")
    assert operator.get("/v1/audit-log?limit=1").json["items"] == [seen | {"login": "postgres"}]
    assert seen["entry_id"] not in [entry["entry_id"] for entry in acme.get("/v1/audit-log").json["items"]]


NOTED = """
insert into audit_log (key_id, customer_id, action, entity, entity_id)
select 'fk_noted', case when n % 3 = 0 then 'other' else 'acme' end, 'update', 'thing', 'Noted-' || n
from generate_series(1, 9) n
"""


@pytest.fixture(scope="module")
def noted(served):
    """Nine entries, `Noted-1` to `Noted-9`, of which every third is of another customer."""
    with served.registry() as opened:
        opened.execute(NOTED)


LATER = """
insert into audit_log (key_id, customer_id, action, entity, entity_id) values ('fk_later', 'acme', 'update', 'thing', 'later')
"""


def noted_ids(page):
    return [int(entry["entity_id"].removeprefix("Noted-")) for entry in page["items"]]


def paged(client, path):
    """Return the pages from the first to the last, and those from the last to the first."""
    there = [client.get(path).json]
    while there[-1]["next_cursor"] is not None:
        there.append(client.get(f"{path}&cursor={there[-1]['next_cursor']}").json)
    back = [there[-1]]
    while back[-1]["previous_cursor"] is not None:
        back.append(client.get(f"{path}&cursor={back[-1]['previous_cursor']}").json)
    return there, back


@pytest.mark.usefixtures("noted")
@pytest.mark.parametrize("limit", [1, 2, 4, 9])
def test_the_audit_log_is_paged_to_its_end_and_back(acme, limit):
    """Regression: the audit log was paged forward only."""
    there, back = paged(acme, f"/v1/audit-log?q=NOTED-&limit={limit}")
    assert [number for page in there for number in noted_ids(page)] == [8, 7, 5, 4, 2, 1]
    assert [number for page in reversed(back) for number in noted_ids(page)] == [8, 7, 5, 4, 2, 1]
    assert {page["total"] for page in there} == {None}
    assert there[0]["previous_cursor"] is None


CROWD = """
insert into audit_log (key_id, customer_id, action, entity, entity_id)
select 'fk_crowd', 'other', 'update', 'thing', case when n = any (%(rare)s) then 'Rare-' else 'crowd-' end || n
from generate_series(1, %(count)s) n
"""


@pytest.fixture
def rare(served):
    """Return the numbers of the few entries that match `rare-`, the newest first, of four times those that a page examines."""
    most = audit_log.MAX_LOOKED_AT
    found = [4 * most, 3 * most + 3, 3 * most + 2, most, 1]
    with served.registry() as opened:
        opened.execute(CROWD, {"rare": found, "count": 4 * most})
        yield found
        opened.execute("delete from audit_log where key_id = 'fk_crowd'")


@pytest.mark.parametrize("limit", [1, 2])
def test_pages_with_few_matches_lead_on_in_both_directions(other, rare, limit):
    """A request examines a bounded number of entries, so a page may have fewer matches than fit, or none."""
    there, back = paged(other, f"/v1/audit-log?q=rare-&limit={limit}")
    for pages in (there, back[::-1]):
        found = [entry["entity_id"] for page in pages for entry in page["items"]]
        assert found == [f"Rare-{number}" for number in rare]
    assert there[0]["previous_cursor"] is None
    assert any(len(page["items"]) < limit for page in there[:-1])


def test_a_total_counts_the_newest_audit_entries_only(other, rare):
    page = other.get("/v1/audit-log?q=rare-&total=true").json
    older = 4 * audit_log.MAX_LOOKED_AT - audit_log.MAX_COUNTED
    assert (page["total"], page["is_total_exact"]) == (sum(number > older for number in rare), False)


LARGE = """
insert into audit_log (key_id, customer_id, action, entity, entity_id, after)
select 'fk_large', 'other', 'update', 'thing', 'large-' || n, jsonb_build_object('a', repeat('x', 1000000))
from generate_series(1, 40) n
"""


@pytest.fixture
def _large(served):
    with served.registry() as opened:
        opened.execute(LARGE)
        yield
        opened.execute("delete from audit_log where key_id = 'fk_large'")


@pytest.mark.usefixtures("_large")
def test_a_page_of_large_audit_entries_takes_little_memory(other):
    """Regression: the API read all entries of a page, and only then cut the page to 1 MiB."""
    tracemalloc.start()
    try:
        page = other.get("/v1/audit-log?q=large-&limit=200").json
        assert tracemalloc.get_traced_memory()[1] < 20_000_000  # bytes; the entries have twice as many
    finally:
        tracemalloc.stop()
    assert [entry["entity_id"] for entry in page["items"]] == ["large-40"]
    following = other.get(f"/v1/audit-log?q=large-&limit=200&cursor={page['next_cursor']}").json
    assert [entry["entity_id"] for entry in following["items"]] == ["large-39"]


@pytest.mark.usefixtures("noted")
@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("q=noted-&customer=other", [9, 6, 3]), ("q=FK_NOTED&customer=acme", [8, 7, 5, 4, 2, 1]), ("q=noted-7", [7]),
        ("q=noted_7", []),
    ],
)  # fmt: skip
def test_the_audit_log_is_searched_and_counted(operator, query, found):
    page = operator.get(f"/v1/audit-log?{query}&total=true").json
    assert (noted_ids(page), page["total"], page["is_total_exact"]) == (found, len(found), True)


@pytest.mark.usefixtures("noted")
def test_a_cursor_of_the_version_before_leads_on(acme):
    """A client may page while the platform is upgraded. The cursors were the number of an entry, as text."""
    first = acme.get("/v1/audit-log?q=noted-&limit=1").json
    assert cursors.decode(first["next_cursor"]) == str(first["items"][0]["entry_id"])


@pytest.mark.usefixtures("noted")
def test_an_entry_that_comes_later_is_on_the_page_before(served, acme):
    first = acme.get("/v1/audit-log?limit=1").json
    second = acme.get(f"/v1/audit-log?limit=1&cursor={first['next_cursor']}").json
    with served.registry() as opened:
        opened.execute(LATER)
    newest = acme.get(f"/v1/audit-log?limit=5&cursor={second['previous_cursor']}").json
    assert [entry["entity_id"] for entry in newest["items"]] == ["later", first["items"][0]["entity_id"]]
    assert newest["previous_cursor"] is None
    for wrong in (cursors.encode("x1"), cursors.encode_previous("x1")):
        assert acme.get(f"/v1/audit-log?cursor={wrong}").fields == ["cursor"]


def test_every_changing_route_has_an_audit_test():
    assert {name for name, *_ in IN_ORDER} == CHANGES.keys()
