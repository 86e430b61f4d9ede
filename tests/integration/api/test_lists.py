"""Lists of the registry are paged both ways, counted, and limited to the rows that match."""

import pytest

from subscriptions_db.registration import registered_rows
from tests.integration.api import world

pytestmark = pytest.mark.integration

ROWS = """
insert into endpoints (endpoint_id, customer_id, url, status, description, metadata) values
    ('l1', 'acme', 'https://hooks.example.com/Lists/1', 'active', '', '{"team": "a", "site": "x:y"}'),
    ('l2', 'acme', 'https://hooks.example.com/lists/2', 'paused', 'Second 100% of them', '{"team": "a"}'),
    ('l3', 'acme', 'https://hooks.example.com/lists/3', 'disabled', 'third', '{"team": "b"}'),
    ('l4', 'other', 'https://hooks.example.com/lists/4', 'active', '', '{"team": "a"}');
insert into subscriptions (subscription_id, endpoint_id, customer_id, event_type, scope, status, description, metadata) values
    ('m1', 'l1', 'acme', 'listed.one', 'everything', 'active', 'First', '{"team": "a"}'),
    ('m2', 'l1', 'acme', 'listed.two', 'everything', 'paused', '', '{}'),
    ('m3', 'l2', 'acme', 'listed.*', 'everything', 'active', '', '{"team": "b"}'),
    ('m4', 'l4', 'other', 'listed.one', 'everything', 'active', 'first', '{}');
insert into customers (customer_id, name) values ('zz-shop', 'Zürich 100% Shop'), ('zz-other', 'Shopping');
insert into tenants (tenant_id, name, status) values ('zz-t1', 'North_Shop', 'active'), ('zz-t2', 'south shop', 'suspended');
"""


@pytest.fixture(scope="module")
def served(postgres):
    with world.served(postgres) as made:
        with made.registry() as opened:
            opened.execute(ROWS)
        yield made


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("endpoints?q=LISTS", ["l1", "l2", "l3"]),
        ("endpoints?q=L2", ["l2"]),
        ("endpoints?q=THIRD", ["l3"]),
        ("endpoints?q=100%25+of", ["l2"]),
        ("endpoints?q=lists_2", []),
        ("endpoints?q=lists&status=disabled", ["l3"]),
        ("endpoints?metadata=team:a", ["l1", "l2"]),
        ("endpoints?metadata=team:a&status=paused", ["l2"]),
        ("endpoints?metadata=site:x:y", ["l1"]),
        ("endpoints?metadata=team:", []),
        ("endpoints?q=lists&customer=acme", ["l1", "l2", "l3"]),
        ("subscriptions?q=listed", ["m1", "m2", "m3"]),
        ("subscriptions?q=fIRST", ["m1"]),
        ("subscriptions?event_type=listed.*", ["m3"]),
        ("subscriptions?endpoint=l1&status=paused", ["m2"]),
        ("subscriptions?metadata=team:b", ["m3"]),
        ("subscriptions?event_type=listed.one&customer=acme", ["m1"]),
    ],
)
def test_a_list_has_the_rows_of_the_customer_that_match(acme, query, found):
    answer = acme.get(f"/v1/{query}&total=true")
    assert world.ids(answer) == found
    assert answer.json["total"] == len(found)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("endpoints?status=sleeping", "status"),
        ("subscriptions?status=disabled", "status"),
        ("endpoints?metadata=team", "metadata"),
        ("endpoints?metadata=a%20b:c", "metadata"),
        ("endpoints?q=", "q"),
        ("endpoints?q=" + "x" * 201, "q"),
        ("endpoints?total=perhaps", "total"),
        ("endpoints?cursor=*", "cursor"),
        ("endpoints?q=lists&customer=other", "customer"),
        ("subscriptions?customer=nobody", "customer"),
    ],
)
def test_an_invalid_parameter_is_refused_by_name(acme, query, field):
    answer = acme.get(f"/v1/{query}")
    assert (answer.status, answer.fields) == (422, [field])


@pytest.fixture
def endpoint_reads(monkeypatch):
    """The ids of the endpoints that each statement reads."""
    reads, rows_of = [], registered_rows.rows_of

    def counted(connection, only=None):
        if "endpoint" in (only or {}):
            reads.append(only["endpoint"])
        return rows_of(connection, only)

    monkeypatch.setattr(registered_rows, "rows_of", counted)
    return reads


def test_subscriptions_are_listed_with_their_endpoints(acme, endpoint_reads):
    page = acme.get("/v1/subscriptions?q=listed&expand=endpoint").json
    assert endpoint_reads == [["l1", "l2"]]
    expanded = {item["id"]: item.pop("expanded") for item in page["items"]}
    first, second = (acme.get(f"/v1/endpoints/{name}").json for name in ("l1", "l2"))
    assert expanded == {"m1": {"endpoint": first}, "m2": {"endpoint": first}, "m3": {"endpoint": second}}
    assert page == acme.get("/v1/subscriptions?q=listed").json


LARGE_ENDPOINTS = """
insert into endpoints (endpoint_id, customer_id, url, description, metadata)
select 'large-' || n, 'acme', 'https://hooks.example.com/', repeat('x', 2000), jsonb_build_object('x', repeat('x', 8000))
from generate_series(100, 299) n
"""
LARGE_SUBSCRIPTIONS = """
insert into subscriptions (subscription_id, endpoint_id, customer_id, event_type, scope)
select 'large-' || n, 'large-100', 'acme', 'large', 'everything' from generate_series(100, 299) n
"""
LARGE = [f"large-{number}" for number in range(100, 300)]
"""The ids of 200 endpoints of 10 KB each, and of 200 subscriptions of the first of them. A page has 1 MiB."""


@pytest.fixture
def large_rows(served):
    with served.registry() as opened:
        opened.execute(LARGE_ENDPOINTS)
        opened.execute(LARGE_SUBSCRIPTIONS)
        yield
        opened.execute("delete from subscriptions where subscription_id like 'large-%'")
        opened.execute("delete from endpoints where endpoint_id like 'large-%'")


@pytest.mark.usefixtures("large_rows")
def test_an_expanded_endpoint_counts_towards_the_bytes_of_a_page(acme):
    path = "/v1/subscriptions?q=large&limit=200"
    assert world.ids(acme.get(path)) == LARGE
    pages = [acme.get(f"{path}&expand=endpoint").json]
    while pages[-1]["next_cursor"] is not None:
        pages.append(acme.get(f"{path}&expand=endpoint&cursor={pages[-1]['next_cursor']}").json)
    assert [item["id"] for page in pages for item in page["items"]] == LARGE
    assert len(pages) == 3


def test_only_lists_expand_and_only_endpoints(acme):
    for path in ("subscriptions?expand=customer", "subscriptions/m1?expand=endpoint", "endpoints?expand=endpoint"):
        assert acme.get(f"/v1/{path}").fields == ["expand"]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("customers?q=SHOP", ["zz-other", "zz-shop"]),
        ("customers?q=100%25", ["zz-shop"]),
        ("customers?q=z_shop", []),
        ("tenants?q=shop", ["zz-t1", "zz-t2"]),
        ("tenants?q=NORTH_", ["zz-t1"]),
        ("tenants?q=zz-&status=suspended", ["zz-t2"]),
        ("tenants?status=suspended", ["zz-t2"]),
    ],
)
def test_the_operator_searches_customers_and_tenants(operator, query, found):
    """Regression: the lists of customers and of tenants could not be searched."""
    answer = operator.get(f"/v1/{query}&total=true")
    assert (world.ids(answer), answer.json["total"]) == (found, len(found))


def test_tenants_have_no_other_status(operator):
    assert operator.get("/v1/tenants?status=paused").fields == ["status"]


def test_the_operator_finds_rows_of_every_customer(operator):
    assert world.ids(operator.get("/v1/endpoints?metadata=team:a")) == ["l1", "l2", "l4"]


@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("path", ["endpoints", "subscriptions", "customers", "tenants", "event-types"])
def test_a_list_is_paged_to_its_end_and_back(operator, path, limit):
    whole = world.ids(operator.get(f"/v1/{path}?limit=200"))
    there = [operator.get(f"/v1/{path}?limit={limit}").json]
    while there[-1]["next_cursor"] is not None:
        there.append(operator.get(f"/v1/{path}?limit={limit}&cursor={there[-1]['next_cursor']}").json)
    back = [there[-1]]
    while back[-1]["previous_cursor"] is not None:
        back.append(operator.get(f"/v1/{path}?limit={limit}&cursor={back[-1]['previous_cursor']}").json)
    assert [row["id"] for page in there for row in page["items"]] == whole
    assert [row["id"] for page in reversed(back) for row in page["items"]] == whole
    assert {page["total"] for page in there} == {None}


@pytest.mark.usefixtures("large_rows")
def test_a_page_back_is_paged_by_bytes_too(operator):
    path = "/v1/endpoints?q=large&limit=200"
    pages = [operator.get(path).json]
    for name in ("next_cursor", "next_cursor", "previous_cursor"):
        pages.append(operator.get(f"{path}&cursor={pages[-1][name]}").json)
    found = [[row["id"] for row in page["items"]] for page in pages]
    assert (found[0] + found[1] + found[2], found[3]) == (LARGE, found[1])
    assert (pages[3]["next_cursor"], pages[3]["previous_cursor"]) == (pages[1]["next_cursor"], pages[1]["previous_cursor"])


def test_a_previous_page_whose_rows_are_gone_is_the_first_page(operator, served):
    first = operator.get("/v1/endpoints?q=lists&limit=1").json
    second = operator.get(f"/v1/endpoints?q=lists&limit=1&cursor={first['next_cursor']}").json
    with served.registry() as opened:
        opened.execute("delete from endpoints where endpoint_id = 'l1'")
    page = operator.get(f"/v1/endpoints?q=lists&limit=1&cursor={second['previous_cursor']}").json
    assert [row["id"] for row in page["items"]] == ["l2"]
    assert (page["previous_cursor"], page["next_cursor"]) == (None, second["next_cursor"])


def test_a_next_page_whose_rows_are_gone_has_a_previous_page(operator, served):
    """Regression: a next page without rows had no `previous_cursor`, which means that it is the first page."""
    path = "/v1/endpoints?q=lists&limit=1"
    pages = [operator.get(path).json]
    while pages[-1]["next_cursor"] is not None:
        pages.append(operator.get(f"{path}&cursor={pages[-1]['next_cursor']}").json)
    [kept, last] = [page["items"][0]["id"] for page in pages[-2:]]
    with served.registry() as opened:
        opened.execute("delete from endpoints where endpoint_id = %s", [last])
        gone = operator.get(f"{path}&cursor={pages[-2]['next_cursor']}").json
        assert (gone["items"], gone["next_cursor"]) == ([], None)
        back = operator.get(f"{path}&cursor={gone['previous_cursor']}").json
        assert ([row["id"] for row in back["items"]], back["next_cursor"]) == ([kept], None)
        opened.execute("delete from endpoints where endpoint_id like 'l_'")
    assert operator.get(f"{path}&cursor={pages[-2]['next_cursor']}").json["previous_cursor"] is None
