-- The statements of the API, of API keys and of the audit log, by name. subscriptions_db/postgres/sql.py loads them.

-- name: put_api_key
insert into api_keys (key_id, customer_id, scope, name, digest, expires_at, tenants, endpoints)
values (
    %(key_id)s, %(customer_id)s, %(scope)s, %(name)s, %(digest)s, %(expires_at)s, %(tenants)s::registry_id[],
    %(endpoints)s::registry_id[]
);

-- name: api_keys
select key_id, customer_id, scope, name, tenants::text[], endpoints::text[], created_at, expires_at, last_used_at, revoked_at
from api_keys where %(customer_id)s::text is null or customer_id = %(customer_id)s
order by created_at, key_id;

-- name: revoke_api_key
-- `held`: true if this statement revokes the key, false if the key was revoked before.
with found as (
    select key_id, revoked_at is null as held from api_keys where key_id = %(key_id)s for update
)
update api_keys k set revoked_at = coalesce(revoked_at, now()) from found where k.key_id = found.key_id
returning k.key_id, customer_id, revoked_at, held;

-- name: api_key
select key_id, customer_id, scope, digest, expires_at, revoked_at, tenants::text[], endpoints::text[] from api_keys
where key_id = %(key_id)s;

-- name: note_use_of_api_keys
-- Rows that another process is writing are skipped, so that two processes do not wait for each other.
update api_keys set last_used_at = %(now)s where ctid = any (array(
    select ctid from api_keys where key_id = any (%(key_ids)s) and (last_used_at is null or last_used_at < %(earlier)s)
    for no key update skip locked
));

-- name: begin_read
-- The transaction sees one consistent snapshot. Role, customer and endpoints decide which rows are visible until its end.
begin isolation level repeatable read;
select set_config('role', %(role)s, true), set_config('fanout.customer_id', %(customer_id)s, true),
       set_config('fanout.endpoint_ids', %(endpoint_ids)s, true);

-- name: begin_change
-- Read committed: after waiting for a lock, the transaction sees the row as it was committed. A wait for a lock ends after a second,
-- because the request occupies one of few threads meanwhile.
begin isolation level read committed;
select set_config('role', %(role)s, true), set_config('fanout.customer_id', %(customer_id)s, true),
       set_config('fanout.endpoint_ids', %(endpoint_ids)s, true), set_config('lock_timeout', '1s', true);

-- name: end_change
-- The commit waits for the commits of all other changes of the registry (0002_endpoints_whole.sql). A second may not be enough.
select set_config('lock_timeout', '0', true);
commit;

-- name: limit_to_endpoints
-- `endpoint_ids` empty: the key reaches all endpoints of the customer.
select set_config('fanout.endpoint_ids', %(endpoint_ids)s, true);

-- name: lock_row
-- Locks out other requests until the end of the transaction, also if the row does not exist yet.
select pg_advisory_xact_lock(hashtextextended(%(kind)s || ' ' || %(id)s, 0));

-- name: lock_endpoint
-- Locks out every other writer, such as `fanout apply` and plain SQL. Subscriptions of the endpoint may be created meanwhile.
select endpoint_id from endpoints where endpoint_id = %(id)s for no key update;

-- name: lock_subscription
select subscription_id from subscriptions where subscription_id = %(id)s for update;

-- name: keep_endpoint
-- A deletion of the endpoint waits until the end of the transaction. Changes do not.
select customer_id from endpoints where endpoint_id = %(endpoint_id)s for key share;

-- name: lock_customer
select customer_id from customers where customer_id = %(id)s for update;

-- name: lock_tenant
select tenant_id from tenants where tenant_id = %(id)s for update;

-- name: lock_event_type
select event_type from event_types where event_type = %(id)s for update;

-- name: matching_event_types
-- Each `matching_…` selects the ids of a list, without order. crud.py puts it before rows_after, rows_before, rows_among or
-- number_of_rows.
select event_type as id from event_types
where (%(q)s::text is null or position(lower(%(q)s) in lower(concat_ws(chr(10), event_type, description))) > 0)
  and (%(deprecated)s::boolean is null or deprecated = %(deprecated)s)

-- name: matching_tenants
select tenant_id as id from tenants
where (%(status)s::text is null or status = %(status)s)
  and (%(q)s::text is null or position(lower(%(q)s) in lower(concat_ws(chr(10), tenant_id, name))) > 0)

-- name: matching_customers
select customer_id as id from customers
where %(q)s::text is null or position(lower(%(q)s) in lower(concat_ws(chr(10), customer_id, name))) > 0

-- name: matching_endpoints
select endpoint_id as id from endpoints
where (%(customer)s::text is null or customer_id = %(customer)s)
  and (%(status)s::text is null or status = %(status)s)
  and (%(metadata)s::jsonb is null or metadata @> %(metadata)s)
  and (%(q)s::text is null or position(lower(%(q)s) in lower(concat_ws(chr(10), endpoint_id, url, description))) > 0)

-- name: matching_subscriptions
select subscription_id as id from subscriptions
where (%(customer)s::text is null or customer_id = %(customer)s)
  and (%(endpoint)s::text is null or endpoint_id = %(endpoint)s)
  and (%(event_type)s::text is null or event_type = %(event_type)s)
  and (%(status)s::text is null or status = %(status)s)
  and (%(metadata)s::jsonb is null or metadata @> %(metadata)s)
  and (%(q)s::text is null or position(lower(%(q)s) in lower(concat_ws(chr(10), subscription_id, event_type, description))) > 0)

-- name: rows_after
select id from matching where id > %(place)s order by id limit %(limit)s;

-- name: rows_before
select id from matching where id < %(place)s order by id desc limit %(limit)s;

-- name: rows_among
select id from matching where id = any (%(ids)s);

-- name: number_of_rows
select count(*) as rows from matching;

-- name: entries_before
-- The audit entries that a search examines: at most `most`, those nearest to `place` first. An entry may be committed after
-- entries with larger numbers. audit_log.py builds two statements with entries_before, or with entries_after in its place:
-- 1. `looked_at` as (entries_before), then last_entry_….
-- 2. `looked_at` as (entries_before), `matching` as (matching_entries), then nearest_entries_…, or number_of_matches of
--    archive/queries.sql.
select entry_id, at, key_id, login, customer_id, action, entity, entity_id, before, after from audit_log
where entry_id < %(place)s and (%(customer)s::text is null or customer_id = %(customer)s)
order by entry_id desc limit %(most)s

-- name: entries_after
select entry_id, at, key_id, login, customer_id, action, entity, entity_id, before, after from audit_log
where entry_id > %(place)s and (%(customer)s::text is null or customer_id = %(customer)s)
order by entry_id limit %(most)s

-- name: matching_entries
select * from looked_at
where %(q)s::text is null or position(lower(%(q)s) in lower(concat_ws(chr(10), key_id, action, entity, entity_id))) > 0

-- name: nearest_entries_before
select * from matching order by entry_id desc limit %(limit)s

-- name: nearest_entries_after
select * from matching order by entry_id limit %(limit)s

-- name: last_entry_before
select entry_id from looked_at order by entry_id desc limit 1 offset %(most)s - 1

-- name: last_entry_after
select entry_id from looked_at order by entry_id limit 1 offset %(most)s - 1

-- name: put_audit_entries
insert into audit_log (key_id, customer_id, action, entity, entity_id, before, after)
select * from jsonb_to_recordset(%(entries)s) as entry (
    key_id text, customer_id text, action text, entity text, entity_id text, before jsonb, after jsonb
);

-- name: customers_of_endpoints
select endpoint_id, customer_id from endpoints where endpoint_id = any (%(ids)s);

-- name: granted_tenants
select customer_id, tenant_id from customer_tenants where customer_id = any (%(ids)s) order by tenant_id;

-- name: delete_granted_tenants
delete from customer_tenants where customer_id = %(customer_id)s;

-- name: put_granted_tenant
insert into customer_tenants (customer_id, tenant_id) values (%(customer_id)s, %(tenant_id)s);

-- name: customer_quotas
select customer_id, max_endpoints as endpoints, max_subscriptions as subscriptions, max_dead_letters as dead_letters
from customer_quotas where customer_id = any (%(ids)s);

-- name: put_customer_quotas
insert into customer_quotas (customer_id, max_endpoints, max_subscriptions, max_dead_letters)
values (%(customer_id)s, %(endpoints)s, %(subscriptions)s, %(dead_letters)s)
on conflict (customer_id) do update
set max_endpoints = excluded.max_endpoints, max_subscriptions = excluded.max_subscriptions, max_dead_letters = excluded.max_dead_letters;

-- name: delete_customers
delete from customers where customer_id = any (%(ids)s);

-- name: delete_tenants
delete from tenants where tenant_id = any (%(ids)s);

-- name: delete_event_types
delete from event_types where event_type = any (%(ids)s);

-- name: set_subscription_status
update subscriptions set status = %(status)s where subscription_id = %(id)s and status <> %(status)s;

-- name: subscriptions_to_endpoint
select subscription_id as id from subscriptions where endpoint_id = %(endpoint_id)s order by subscription_id limit %(limit)s;

-- name: delete_old_answers
-- Rows that another transaction has locked are skipped, so that two transactions do not wait for each other.
delete from idempotency_keys where ctid = any (array(
    select ctid from idempotency_keys where created_at < now() - interval '1 day'
    order by created_at limit %(most)s for update skip locked
));

-- name: claim_idempotency_key
-- Waits for a request with the same key that is in flight. Returns no row if the key was claimed within a day.
insert into idempotency_keys as known (customer_id, idempotency_key, request_digest)
values (%(customer_id)s, %(idempotency_key)s, %(request_digest)s)
on conflict (customer_id, idempotency_key) do update
set request_digest = excluded.request_digest, status = null, answer = null, created_at = excluded.created_at
where known.created_at < now() - interval '1 day'
returning true as claimed;

-- name: stored_answer
select request_digest, status, answer from idempotency_keys
where customer_id is not distinct from %(customer_id)s and idempotency_key = %(idempotency_key)s;

-- name: put_answer
update idempotency_keys set status = %(status)s, answer = %(answer)s
where customer_id is not distinct from %(customer_id)s and idempotency_key = %(idempotency_key)s;

-- name: delete_old_published_events
-- Rows that another process is deleting are skipped, so that two processes do not wait for each other.
delete from published_events where ctid = any (array(
    select ctid from published_events where day < %(before)s for update skip locked
));

-- name: add_published_events
-- Also returns the tenants' own quotas. Leaves out unregistered tenants, because publishers can invent any number of ids.
with added as (
    insert into published_events as known (day, tenant_id, events)
    select day, tenant_id, events
    from unnest(%(days)s::date[], %(tenants)s::text[], %(events)s::bigint[]) as counted (day, tenant_id, events)
    where exists (select from tenants where tenants.tenant_id = counted.tenant_id)
    order by day, tenant_id collate "C"
    on conflict (day, tenant_id) do update set events = known.events + excluded.events
    returning day, tenant_id, events
)
select day, tenant_id, events, max_events_per_day as quota from added left join tenant_quotas using (tenant_id);

-- name: tenant_quotas
select tenant_id, max_events_per_day as events_per_day from tenant_quotas where tenant_id = any (%(ids)s);

-- name: put_tenant_quotas
insert into tenant_quotas (tenant_id, max_events_per_day) values (%(tenant_id)s, %(events_per_day)s)
on conflict (tenant_id) do update set max_events_per_day = excluded.max_events_per_day;

-- name: login_rights
-- `passes_by`: true for a login to which row-level security does not apply.
select rolsuper or rolbypassrls as passes_by from pg_roles where rolname = session_user;

-- name: count_endpoints
-- Makes other requests of the customer that create endpoints wait until the end of this transaction, then counts the committed
-- rows. `quota` is null for a customer without a quota of its own.
select pg_advisory_xact_lock(hashtextextended('quota of endpoints ' || %(customer)s, 0));
select count(*) as rows, (select max_endpoints from customer_quotas where customer_id = %(customer)s) as quota
from endpoints where customer_id = %(customer)s;

-- name: count_scopes
-- The same as count_endpoints, for the tenants and sub-tenants of all subscriptions of a customer. Counts at most `most` rows, which
-- bounds the time. The lateral query reads each subscription's scopes by the index. A join would check the policy of row-level
-- security for the scopes of all customers.
select pg_advisory_xact_lock(hashtextextended('quota of scopes ' || %(customer)s, 0));
select count(*) as rows from (
    select from subscriptions
    cross join lateral (select from scopes where scopes.subscription_id = subscriptions.subscription_id offset 0) as named
    where customer_id = %(customer)s limit %(most)s
) as counted;

-- name: count_subscriptions
-- The same as count_endpoints, for subscriptions.
select pg_advisory_xact_lock(hashtextextended('quota of subscriptions ' || %(customer)s, 0));
select count(*) as rows, (select max_subscriptions from customer_quotas where customer_id = %(customer)s) as quota
from subscriptions where customer_id = %(customer)s;
