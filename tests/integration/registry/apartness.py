"""Find tables, rights and roles in Postgres that do not keep customers apart, by the system catalogue.

`faults` knows every permitted object: the policies that `keep_customers_apart` creates, and the rights of the API's roles. So a
new table, right or role is a fault until it is added to this module.
"""

from __future__ import annotations

from collections.abc import Iterator

from subscriptions_db.postgres import connect

CUSTOMERS, OPERATORS = "fanout_api", "fanout_operator"
OF_ITS_CUSTOMER = "((customer_id)::text = current_setting('fanout.customer_id'::text, true))"
"""With no customer named it is null, and so true of no row."""
OF_ITS_SUBSCRIPTION = "((subscription_id)::text IN ( SELECT subscriptions.subscription_id FROM subscriptions))"
OF_ITS_REPLAY = "(replay_id IN ( SELECT replays.replay_id FROM replays))"
OWN = {
    "scopes": OF_ITS_SUBSCRIPTION,
    "filters": OF_ITS_SUBSCRIPTION,
    "replay_places": OF_ITS_REPLAY,
    "event_types": "true",  # the catalogue is nobody's, and so everybody's
}
"""The tables that have another policy than OF_ITS_CUSTOMER."""
LIMIT = "string_to_array(current_setting('fanout.endpoint_ids'::text, true), ','::text)"
IS_NOT_LIMITED = "(COALESCE(current_setting('fanout.endpoint_ids'::text, true), ''::text) = ''::text)"
OF_ITS_ENDPOINT = f"((endpoint_id)::text = ANY ({LIMIT}))"
OF_ITS_ENTITY = (
    f"(((entity = 'endpoint'::text) AND (entity_id = ANY ({LIMIT}))) OR ((entity = 'subscription'::text) AND "  # noqa: S608
    "(entity_id IN ( SELECT subscriptions.subscription_id FROM subscriptions))))"
)
OF_ITS_CONSUMER = "(consumer IN ( SELECT dead_letter_consumers.name FROM dead_letter_consumers))"
OF_ITS_LIMIT = (
    "starts_with(idempotency_key, (encode(sha256(convert_to(current_setting('fanout.endpoint_ids'::text, true), "
    "'UTF8'::name)), 'hex'::text) || ' '::text))"
)
OWN_ENDPOINTS = {
    "endpoints": OF_ITS_ENDPOINT,
    "secrets": OF_ITS_ENDPOINT,
    "subscriptions": OF_ITS_ENDPOINT,
    "validations": OF_ITS_ENDPOINT,
    "replays": OF_ITS_ENDPOINT,
    "dead_letters": OF_ITS_ENDPOINT,
    "attempts": OF_ITS_ENDPOINT,
    "delivery_statistics": OF_ITS_ENDPOINT.replace("(endpoint_id)::text", "endpoint_id"),
    "dead_letter_consumers": OF_ITS_ENDPOINT,
    "dead_letter_leases": OF_ITS_CONSUMER,
    "idempotency_keys": OF_ITS_LIMIT,
    "audit_log": OF_ITS_ENTITY,
}
"""The tables with a policy for limited keys. It is the same for what is read and written, except in READ_ONLY."""
READ_ONLY = {"audit_log"}
"""A limited key may write every entry about its customer."""
WITHOUT_RIGHT = {"endpoint_conditions", "operational_events", "redrive_notes"}
"""The tables of endpoints without a policy for limited keys: no customer's key has a right on them."""
WITHOUT_POLICY = {"revisions"}
"""Tables without a policy. A customer's role sees one column of `revisions`, which does not show whose row it is."""
GRANTED = {
    CUSTOMERS: {
        "customers": "select",
        "customer_tenants": "select",
        "customer_quotas": "select",
        "endpoints": "delete, insert, select, update",
        "secrets": "delete, insert, select, update",
        "subscriptions": "delete, insert, select, update",
        "scopes": "delete, insert, select, update",
        "filters": "delete, insert, select, update",
        "idempotency_keys": "delete, insert, select, update",
        "audit_log": "insert, select",
        "revisions": "select (revision)",
        "event_types": "select",
        "dead_letters": "select, update (state), update (state_since)",
        "dead_letter_consumers": "delete, insert, select, update",
        "dead_letter_leases": "delete, insert, select, update",
        "attempts": "select",
        "delivery_statistics": "select",
        "replays": "insert, select, update (state), update (state_since)",
        "validations": "delete, insert, select, update",
        "reached_quotas": "select",
    },
    OPERATORS: {
        "tenants": "delete, insert, select, update",
        "sub_tenants": "delete, insert, select, update",
        "customers": "delete, insert, select, update",
        "customer_tenants": "delete, insert, select, update",
        "customer_quotas": "delete, insert, select, update",
        "endpoints": "delete, insert, select, update",
        "secrets": "delete, insert, select, update",
        "subscriptions": "delete, insert, select, update",
        "scopes": "delete, insert, select, update",
        "filters": "delete, insert, select, update",
        "idempotency_keys": "delete, insert, select, update",
        "audit_log": "insert, select",
        "api_keys": "select, update (last_used_at)",
        "revisions": "select",
        "migrations": "select",
        "event_types": "delete, insert, select, update",
        "dead_letters": "select, update (state), update (state_since)",
        "dead_letter_consumers": "delete, insert, select, update",
        "dead_letter_leases": "delete, insert, select, update",
        "attempts": "select",
        "delivery_statistics": "select",
        "replays": "insert, select, update (state), update (state_since)",
        "validations": "delete, insert, select, update",
        "published_events": "delete, insert, select, update",
        "tenant_quotas": "delete, insert, select, update",
        "reached_quotas": "select",
    },
}
"""All that the roles may do with relations, by role and relation; of a single column, with its name."""

OF_CUSTOMERS = """
with recursive ours as (
    select c.oid, c.relkind from pg_class c join pg_namespace n on n.oid = relnamespace
    where nspname !~ '^pg_' and nspname <> 'information_schema' and relkind in ('r', 'p')
), links as (
    select conrelid as part, confrelid as whole from pg_constraint where contype = 'f'
    union all
    select inhrelid, inhparent from pg_inherits
), of_customers as (
    select oid from ours
    where exists (select from pg_attribute where attrelid = oid and attname = 'customer_id' and not attisdropped)
       or has_any_column_privilege(%(role)s, oid, 'select, insert, update, references')
       or has_table_privilege(%(role)s, oid, 'delete, truncate, trigger')
    union
    select part from links join of_customers on whole = oid
)
select c.relname as name,
       exists (
           select from pg_attribute where attrelid = c.oid and attname = 'endpoint_id' and not attisdropped
       ) as of_endpoints,
       c.relrowsecurity as enabled, c.relforcerowsecurity as forced,
       array(
           select array[
               polname::text, case when polpermissive then 'permissive' else 'restrictive' end, polcmd::text,
               array_to_string(array(select case r when 0 then 'public' else r::regrole::text end from unnest(polroles) r), ''),
               coalesce(pg_get_expr(polqual, polrelid), ''), coalesce(pg_get_expr(polwithcheck, polrelid), '')
           ] from pg_policy where polrelid = c.oid order by polname
       ) as policies
from of_customers join pg_class c using (oid)
order by name
"""
"""Tables with a `customer_id`, those on which a customer's role has any right, and what refers to one or is a part of one."""
NO_TABLES = """
select relname as name, relkind::text as kind, coalesce('security_invoker=true' = any (reloptions), false) as steps_down
from pg_class c join pg_namespace n on n.oid = relnamespace
where nspname !~ '^pg_' and nspname <> 'information_schema' and relkind in ('v', 'm', 'f')
order by name
"""
RIGHTS = """
with held as (
    select relname, null as attname, held.*
    from pg_class c join pg_namespace n on n.oid = relnamespace, aclexplode(relacl) as held
    where nspname !~ '^pg_' and nspname <> 'information_schema'
    union all
    select relname, attname, held.*
    from pg_class c join pg_namespace n on n.oid = relnamespace join pg_attribute on attrelid = c.oid,
         aclexplode(attacl) as held
    where nspname !~ '^pg_' and nspname <> 'information_schema'
), told as (
    select case grantee when 0 then 'public' else grantee::regrole::text end as role, relname,
           lower(privilege_type) || coalesce(' (' || attname || ')', '')
               || case when is_grantable then ' to grant' else '' end as what
    from held where grantee = 0 or grantee::regrole::text = any (%(roles)s)
)
select role, relname as name, string_agg(what, ', ' order by what collate "C") as rights from told group by 1, 2 order by 1, 2
"""
ROLES = """
select rolname as role,
       rolsuper or rolbypassrls or rolcreaterole or rolcreatedb or rolcanlogin or rolreplication as is_more,
       array(select roleid::regrole::text from pg_auth_members where member = r.oid) as member_of,
       array(
           select pg_describe_object(classid, objid, objsubid) from pg_shdepend
           where deptype = 'o' and refobjid = r.oid
             and dbid in (0, (select oid from pg_database where datname = current_database()))
       ) as owns,
       array(
           select nspname::text from pg_namespace
           where nspname !~ '^pg_' and has_schema_privilege(r.oid, oid, 'create') order by 1
       ) as creates_in,
       array(
           select proname::text from pg_proc p join pg_namespace n on n.oid = pronamespace
           where nspname !~ '^pg_' and prosecdef and prorettype <> 'trigger'::regtype
             and has_function_privilege(r.oid, p.oid, 'execute')
       ) as acts_as_owner_by
from pg_roles r where rolname = any (%(roles)s) order by 1
"""
KINDS = {"m": "a materialized view", "f": "a foreign table"}


def faults(connection: connect.Connection) -> list[str]:
    """Return the faults: tables, rights and roles that do not keep customers apart, or that this module does not know."""
    return [*_of_tables(connection), *_of_views(connection), *_of_rights(connection), *_of_roles(connection)]


def of_customers(connection: connect.Connection) -> set[str]:
    """Return the tables with rows of customers, partitions included."""
    return {row["name"] for row in connection.execute(OF_CUSTOMERS, {"role": CUSTOMERS})} - WITHOUT_POLICY


def of_every_endpoint(connection: connect.Connection) -> set[str]:
    """Return the tables on which a customer's role has a right, and which have no policy for limited keys."""
    rows = connection.execute(OF_CUSTOMERS, {"role": CUSTOMERS}).fetchall()
    unlimited = {row["name"] for row in rows if "own_endpoints" not in {policy[0] for policy in row["policies"]}}
    return unlimited & (GRANTED[CUSTOMERS].keys() - WITHOUT_POLICY)


def _of_tables(connection: connect.Connection) -> Iterator[str]:
    for row in connection.execute(OF_CUSTOMERS, {"role": CUSTOMERS}).fetchall():
        name = row["name"]
        if name in WITHOUT_POLICY:
            continue
        if not (row["enabled"] and row["forced"]):
            yield f"{name}: row-level security is not forced"
        policies = [[" ".join(part.split()) for part in policy] for policy in row["policies"]]
        whole = _whole(connection, name)
        own = OWN.get(whole, OF_ITS_CUSTOMER)
        wanted = [
            ["everybody", "permissive", "*", "public", "true", "true"],
            ["own_customer", "restrictive", "*", CUSTOMERS, own, own],
        ]
        if whole in OWN_ENDPOINTS or (row["of_endpoints"] and whole not in WITHOUT_RIGHT):
            limited = f"CASE WHEN {IS_NOT_LIMITED} THEN true ELSE {OWN_ENDPOINTS.get(whole, OF_ITS_ENDPOINT)} END"
            command, check = ("r", "") if whole in READ_ONLY else ("*", limited)
            wanted.append(["own_endpoints", "restrictive", command, CUSTOMERS, limited, check])
        if policies != wanted:
            yield f"{name}: its policies are {policies}, and not those of keep_customers_apart and keep_endpoints_apart"


def _whole(connection: connect.Connection, name: str) -> str:
    """Return the partitioned table of a partition, or the table itself."""
    asked = "select inhparent::regclass::text as whole from pg_inherits join pg_class on oid = inhrelid where relname = %s"
    found = connection.execute(asked, [name]).fetchone()
    return str(found["whole"]) if found else name


def _of_views(connection: connect.Connection) -> Iterator[str]:
    for row in connection.execute(NO_TABLES).fetchall():
        if row["kind"] != "v":
            yield f"{row['name']}: is {KINDS[row['kind']]}, which no policy reaches"
        elif not row["steps_down"]:
            yield f"{row['name']}: is a view with its owner's rights, and not security_invoker"


def _of_rights(connection: connect.Connection) -> Iterator[str]:
    found: dict[str, dict[str, str]] = {role: {} for role in ("public", *GRANTED)}
    for row in connection.execute(RIGHTS, {"roles": list(GRANTED)}):
        found[row["role"]][row["name"]] = row["rights"]
    for role, rights in found.items():
        wanted = GRANTED.get(role, {})
        for name in sorted(rights.keys() | wanted.keys()):
            if (has := rights.get(name)) != (may := wanted.get(name)):
                yield f"{name}: {role} has {has or 'no right'}, and is to have {may or 'none'}"


def _of_roles(connection: connect.Connection) -> Iterator[str]:
    rows = connection.execute(ROLES, {"roles": list(GRANTED)}).fetchall()
    assert len(rows) == len(GRANTED)
    for row in rows:
        if row.pop("is_more"):
            yield f"{row['role']}: may log in, or passes by policies"
        role = row.pop("role")
        yield from (f"{role}: {what} {', '.join(names)}" for what, names in row.items() if names)
