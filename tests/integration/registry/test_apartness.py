"""The check of row-level security holds for the schema, and finds each way in which a new table would not be isolated."""

import datetime as dt

import pytest

from delivery.config import settings
from subscriptions_db.archive.ingest import partitions
from subscriptions_db.postgres import connect
from tests.integration.registry import apartness
from tests.support import databases

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def migrated(postgres):
    """Yield one migrated database for all tests that roll back: a database for each test would take most of the time."""
    url = databases.create_migrated(postgres, "apartness")
    with connect.connect(settings.DatabaseSettings(url=url)) as opened:
        yield opened


def test_every_table_of_customers_has_forced_row_level_security(connection):
    for kind in ("dead_letters", "attempts"):
        partitions.create(connection, kind, dt.date(2026, 5, 10))
    assert apartness.faults(connection) == []
    assert apartness.of_customers(connection) >= {
        "customers", "endpoints", "secrets", "subscriptions", "scopes", "filters", "api_keys", "audit_log", "replay_places",
        "dead_letters", "dead_letters_20260510", "attempts_20260510",
    }  # fmt: skip


def test_only_known_tables_show_a_limited_key_rows_of_every_endpoint(migrated):
    of_customers = {"customers", "customer_tenants", "customer_quotas", "event_types", "reached_quotas"}
    assert apartness.of_every_endpoint(migrated) == of_customers | {"scopes", "filters"}


TABLE = "create table letters (customer_id registry_id, letter_id integer primary key); "
OWN = "customer_id = current_setting('fanout.customer_id', true)"
OR_UNSET = f"{OWN} or current_setting('fanout.customer_id', true) is null"
FORCED = "alter table letters enable row level security; alter table letters force row level security; "
EVERYBODY = "create policy everybody on letters using (true) with check (true); "
APART = "call keep_customers_apart('letters'); "
OWN_POLICY = "create policy own_customer on letters as restrictive to fanout_api "
BOTH = f"using ({OWN}) with check ({OWN})"
BAD = {
    "no policy": "",
    "enabled and not forced": APART + "alter table letters no force row level security",
    "forced and not enabled": APART + "alter table letters disable row level security",
    "a policy of true": "call keep_customers_apart('letters', 'true')",
    "what is seen only": FORCED + EVERYBODY + OWN_POLICY + f"using ({OWN})",
    "what is seen, and anything written": FORCED + EVERYBODY + OWN_POLICY + f"using ({OWN}) with check (true)",
    "what is written only": FORCED + EVERYBODY + OWN_POLICY + f"using (true) with check ({OWN})",
    "of no customer all": FORCED + EVERYBODY + OWN_POLICY + f"using ({OR_UNSET}) with check ({OR_UNSET})",
    "permissive": FORCED + EVERYBODY + OWN_POLICY.replace("as restrictive ", "") + BOTH,
    "one command": FORCED + EVERYBODY + OWN_POLICY.replace(" to ", " for update to ") + BOTH,
    "another role": FORCED + EVERYBODY + OWN_POLICY.replace("fanout_api", "fanout_operator") + BOTH,
}  # fmt: skip


@pytest.mark.parametrize("statements", BAD.values(), ids=BAD)
def test_faults_finds_a_new_table_that_is_not_isolated(migrated, statements):
    with migrated.transaction(force_rollback=True):
        migrated.execute(TABLE + statements)
        faults = apartness.faults(migrated)
        assert faults
        assert all(fault.startswith("letters: ") for fault in faults)


def test_faults_finds_a_new_table(migrated):
    with migrated.transaction(force_rollback=True):
        migrated.execute(TABLE)
        assert "letters" in apartness.of_customers(migrated)
        assert apartness.faults(migrated) != []
        migrated.execute(APART)
        assert apartness.faults(migrated) == []


LETTERS_OF_ENDPOINTS = TABLE + "alter table letters add column endpoint_id registry_id; "
OF_AN_ENDPOINT = {
    "kept apart": (APART, False),
    "without a policy": (APART + "drop policy own_endpoints on letters", True),
    "what is seen": (APART + "alter policy own_endpoints on letters with check (true)", True),
    "what is written": (APART + "alter policy own_endpoints on letters using (true)", True),
    "another role": (APART + "alter policy own_endpoints on letters to fanout_operator", True),
}


@pytest.mark.parametrize(("statements", "is_a_fault"), OF_AN_ENDPOINT.values(), ids=OF_AN_ENDPOINT)
def test_faults_finds_a_table_of_endpoints_without_a_limit(migrated, statements, is_a_fault):
    with migrated.transaction(force_rollback=True):
        migrated.execute(LETTERS_OF_ENDPOINTS + statements)
        assert bool(apartness.faults(migrated)) == is_a_fault


OTHERWISE = {
    "a part of a customer's table": (
        "notes: row-level", "create table notes (endpoint_id registry_id references endpoints)",
    ),
    "a part of a part": (
        "words: row-level", "create table notes (position text primary key references replays)",
        "call keep_customers_apart('notes', 'false')", "create table words (position text references notes)",
    ),
    "a partition that is attached": (
        "a_day: row-level", "create table a_day (like dead_letters including all)",
        "alter table dead_letters attach partition a_day for values from (0) to (1)",
    ),
    "a table without customers, granted": ("sub_tenants: row-level", "grant select on sub_tenants to fanout_api"),
    "a column of it": ("sub_tenants: row-level", "grant select (tenant_id) on sub_tenants to fanout_api"),
    "a right more": ("audit_log: fanout_api has delete, insert, select", "grant delete on audit_log to fanout_api"),
    "a column more": ("revisions: fanout_api has select (entity)", "grant select (entity) on revisions to fanout_api"),
    "a column more to change": (
        "dead_letters: fanout_operator has select, update (letter)", "grant update (letter) on dead_letters to fanout_operator",
    ),
    "a right fewer": ("audit_log: fanout_operator has select, and", "revoke insert on audit_log from fanout_operator"),
    "a right of everybody": ("migrations: public has select", "grant select on migrations to public"),
    "a right to give on": (
        "attempts: fanout_api has select to grant", "grant select on attempts to fanout_api with grant option",
    ),
    "numbers": ("attempt_positions: fanout_api has usage", "grant usage on sequence attempt_positions to fanout_api"),
    "a view": ("all_of_them: is a view with its owner's rights", "create view all_of_them as select * from endpoints"),
    "a view that is kept": ("kept: is a materialized view", "create materialized view kept as select * from endpoints"),
    "an owner": ("fanout_operator: owns table filters", "alter table filters owner to fanout_operator"),
    "a role that passes by": ("fanout_api: may log in, or passes by policies", "alter role fanout_api bypassrls"),
    "a superuser": ("fanout_operator: may log in, or passes by policies", "alter role fanout_operator superuser"),
    "a role that is another": ("fanout_api: member_of fanout_operator", "grant fanout_operator to fanout_api"),
    "a role that makes tables": ("fanout_api: creates_in public", "grant create on schema public to fanout_api"),
    "a function with its owner's rights": (
        "fanout_api: acts_as_owner_by all_keys",
        "create function all_keys() returns setof api_keys language sql security definer as 'select * from api_keys'",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("fault", "statements"), [(fault, rest) for fault, *rest in OTHERWISE.values()], ids=OTHERWISE)
def test_faults_finds_other_ways_to_rows_of_others(migrated, fault, statements):
    with migrated.transaction(force_rollback=True):
        for statement in statements:
            migrated.execute(statement)
        assert [message for message in apartness.faults(migrated) if message.startswith(fault)]


def test_a_view_with_the_rights_of_its_reader_is_no_fault(migrated):
    with migrated.transaction(force_rollback=True):
        migrated.execute("create view own with (security_invoker = true) as select * from endpoints")
        assert apartness.faults(migrated) == []
