-- The statements of the registry, by name. subscriptions_db/postgres/sql.py loads them.

-- name: disable_statement_timeout
-- Migrations and large registrations may take longer than the timeout of the job's statements.
set statement_timeout = 0;

-- name: migration_lock
-- Waits until a concurrent migration has ended.
select pg_advisory_lock(hashtext('fanout.migrations'));

-- name: migration_unlock
select pg_advisory_unlock(hashtext('fanout.migrations'));

-- name: set_migration_lock_timeout
set local lock_timeout = '2s';

-- name: create_migrations
create table if not exists migrations (
    name       text primary key,
    sha256     text not null,
    applied_at timestamptz not null default now()
);

-- name: has_migrations
select to_regclass('migrations') is not null;

-- name: hidden_customers
-- True for a role to which the policies of customers' tables apply. Without the role fanout_api there are no policies yet.
select
    rolname as login,
    coalesce(pg_has_role(oid, to_regrole('fanout_api')::oid, 'usage'), false) and not (rolsuper or rolbypassrls) as are_hidden
from pg_roles where rolname = current_user;

-- name: applied_migrations
select name, sha256 from migrations;

-- name: record_migration
insert into migrations (name, sha256) values (%(name)s, %(sha256)s);

-- name: listen
listen fanout_registry;

-- name: current_revision
-- A reader's revision is a row of the log, or 0 for an empty registry. If the row is missing, the log was shortened, or Postgres lost
-- the change. Numbers alone do not show a loss: a standby that lacks the last changes continues at a higher number, or uses a number again.
select
    coalesce(max(revision), 0) as newest,
    case when %(since)s::bigint = 0 then coalesce(min(revision), 0) <= 1 else exists (
        select from revisions
        where revision = %(since)s::bigint and (%(since_at)s::timestamptz is null or changed_at = %(since_at)s::timestamptz)
    ) end as reach_back
from revisions;

-- name: revision_changed_at
select changed_at from revisions where revision = %(revision)s;

-- name: changes_since
select distinct entity, entity_id from revisions where revision > %(since)s;

-- name: tenants
select tenant_id, status from tenants
where %(ids)s::text[] is null or tenant_id = any (%(ids)s);

-- name: endpoints
-- The headers are read as text: jsonb may contain values that Python cannot parse, and such a row must not fail the whole read.
select
    endpoint_id, customer_id, url, mode, status,
    auth_kind, auth_username, auth_header, auth_client_id, auth_token_url, auth_token_scope,
    content_mode, payload, headers::text, tls_authorities, tls_certificate, max_in_flight, max_per_second,
    batch_max_events, batch_max_wait_s, batch_max_bytes, batch_gzip,
    retry_schedule_s, retry_max_age_s, retry_timeout_s, order_by, awaits_permission, permitted_origin, permitted_per_minute
from endpoints
where %(ids)s::text[] is null or endpoint_id = any (%(ids)s);

-- name: secrets
-- The newest first, because the first signature of a request uses the newest key.
select
    secret_id, endpoint_id, customer_id, purpose, key_id, sealed,
    extract(epoch from expires_at)::double precision as expires_at_s
from secrets
where (%(ids)s::text[] is null or endpoint_id = any (%(ids)s))
  and (expires_at is null or expires_at > now())
order by created_at desc, secret_id;

-- name: subscriptions
-- The pattern is read as text: jsonb may contain values that Python cannot parse, and such a row must not fail the whole read.
select s.subscription_id, s.endpoint_id, s.event_type, s.scope, s.status, f.pattern::text
from subscriptions s left join filters f using (subscription_id)
where %(ids)s::text[] is null or s.subscription_id = any (%(ids)s);

-- name: snapshot_scopes
-- One row for all included tenants of a subscription, and one for its excluded tenants. A row for each tenant would be millions.
select subscription_id, effect,
       array_agg(tenant_id::text) filter (where sub_tenant_id is null) as tenants,
       array_agg(array[tenant_id::text, sub_tenant_id::text]) filter (where sub_tenant_id is not null) as sub_tenants
from scopes
where (%(ids)s::text[] is null or subscription_id = any (%(ids)s))
  and (%(tenant_id)s::text is null or tenant_id = %(tenant_id)s)
group by subscription_id, effect;

-- name: candidates_for_everything
select (select coalesce(max(revision), 0) from revisions) as revision,
       null as tenant_status,
       array(
           select subscription_id::text from subscriptions
           where scope = 'everything' and event_type = any (%(patterns)s)
       ) as subscription_ids;

-- name: candidates_for_tenant
-- Also finds the subscriptions to all tenants that changed after `since`, the revision of the reader's cached answer about all tenants.
select (select coalesce(max(revision), 0) from revisions) as revision,
       (select status from tenants where tenant_id = %(tenant_id)s) as tenant_status,
       array(
           select distinct subscription_id::text from scopes join subscriptions using (subscription_id)
           where tenant_id = %(tenant_id)s and effect = 'include' and event_type = any (%(patterns)s)
           union
           select subscription_id::text from revisions join subscriptions on subscription_id = entity_id
           where revision > %(since)s::bigint and entity = 'subscription'
             and subscriptions.scope = 'everything' and event_type = any (%(patterns)s)
       ) as subscription_ids;

-- name: routes_to_endpoint
select (select coalesce(max(revision), 0) from revisions) as revision,
       array(select subscription_id::text from subscriptions where endpoint_id = %(endpoint_id)s) as subscription_ids;

-- name: sealed_samples
-- Up to ten secrets of each key. A single secret would not be enough: its row may have been changed by hand.
select sample.*
from (select distinct key_id from secrets) as used,
     lateral (
         select secret_id, endpoint_id, customer_id, purpose, key_id, sealed from secrets where key_id = used.key_id limit 10
     ) as sample;

-- name: key_ids_in_use
select distinct key_id from secrets;

-- name: secrets_to_reseal
-- Reads in batches after the last id, so that a secret that does not open is read once. Waits for locked rows, because no secret
-- may stay sealed with the old key after the rotation.
select secret_id, endpoint_id, customer_id, purpose, key_id, sealed from secrets
where key_id <> %(active)s and secret_id > %(after)s order by secret_id limit 500 for update;

-- name: reseal
update secrets set key_id = %(key_id)s, sealed = %(sealed)s where secret_id = %(secret_id)s;

-- name: document_tenants
select tenant_id as id, name, status from tenants
where %(ids)s::text[] is null or tenant_id = any (%(ids)s);

-- name: document_sub_tenants
select tenant_id, sub_tenant_id as id, name from sub_tenants
where %(ids)s::text[] is null or tenant_id = any (%(ids)s);

-- name: deleted_customers
-- Returns those of the ids that belonged to a deleted customer.
select distinct customer_id as id from audit_log
where customer_id = any (%(ids)s) and entity = 'customer' and entity_id = customer_id and action = 'delete';

-- name: document_customers
select customer_id as id, name from customers
where %(ids)s::text[] is null or customer_id = any (%(ids)s);

-- name: document_endpoints
select
    endpoint_id as id, customer_id as customer, url, mode, status,
    auth_kind, auth_username, auth_header, auth_client_id, auth_token_url, auth_token_scope,
    content_mode, payload, headers, tls_authorities, tls_certificate, max_in_flight, max_per_second,
    batch_max_events, batch_max_wait_s, batch_max_bytes, batch_gzip,
    retry_schedule_s, retry_max_age_s, retry_timeout_s, order_by, disabled_reason, disabled_at,
    validation, awaits_permission, permitted_origin, permitted_per_minute, permitted_at,
    description, metadata, created_at, updated_at,
    array(
        select purpose from secrets s where s.endpoint_id = e.endpoint_id and (expires_at is null or expires_at > now())
    ) as purposes
from endpoints e
where %(ids)s::text[] is null or endpoint_id = any (%(ids)s);

-- name: document_subscriptions
select
    s.subscription_id as id, s.endpoint_id as endpoint, s.event_type, s.scope, s.status, f.pattern::text as filter,
    s.description, s.metadata, s.created_at, s.updated_at,
    array(
        select array[effect, tenant_id, sub_tenant_id]::text[] from scopes where scopes.subscription_id = s.subscription_id
    ) as scopes
from subscriptions s left join filters f using (subscription_id)
where %(ids)s::text[] is null or s.subscription_id = any (%(ids)s);

-- name: document_event_types
-- JSON is read as text: Postgres accepts values that Python cannot parse, and such a row must not fail the whole read.
select event_type as id, description, json_schema::text, examples::text, deprecated, changed_at from event_types
where %(ids)s::text[] is null or event_type = any (%(ids)s);

-- name: catalogue
select event_type from event_types;

-- name: lint_subscriptions
select s.subscription_id as id, s.event_type, f.pattern::text as filter
from subscriptions s left join filters f using (subscription_id)
where %(ids)s::text[] is null or s.subscription_id = any (%(ids)s)
order by s.subscription_id;

-- name: reads_tenants
select has_table_privilege('tenants', 'select') and has_table_privilege('sub_tenants', 'select') as reads_tenants;

-- name: lint_scopes
-- Scopes that name an unregistered tenant or sub-tenant. The sub-tenants of operational events are customers, so they are left out.
select c.subscription_id as id, c.effect, c.tenant_id, c.sub_tenant_id, t.tenant_id is not null as has_tenant
from scopes c
left join tenants t using (tenant_id)
left join sub_tenants d on d.tenant_id = c.tenant_id and d.sub_tenant_id = c.sub_tenant_id
where (%(ids)s::text[] is null or c.subscription_id = any (%(ids)s)) and c.tenant_id <> 'fanout'
    and (t.tenant_id is null or c.sub_tenant_id is not null and d.sub_tenant_id is null)
order by c.subscription_id, c.effect, c.tenant_id, c.sub_tenant_id
limit 10000;

-- name: lock_tenants
-- Rows are locked in the order of their ids, so that two concurrent calls do not deadlock.
select from tenants where tenant_id = any (%(ids)s) order by tenant_id for no key update;

-- name: lock_customers
select from customers where customer_id = any (%(ids)s) order by customer_id for no key update;

-- name: lock_endpoints
select from endpoints where endpoint_id = any (%(ids)s) order by endpoint_id for no key update;

-- name: lock_subscriptions
select from subscriptions where subscription_id = any (%(ids)s) order by subscription_id for no key update;

-- name: lock_event_types
select from event_types where event_type = any (%(ids)s) order by event_type for no key update;

-- name: put_tenants
-- Statements with `rows` write many rows at once, from a list of JSON objects. That takes a quarter of the time of single rows.
insert into tenants (tenant_id, name, status)
select id, name, status from jsonb_to_recordset(%(rows)s) as given (id text, name text, status text)
on conflict (tenant_id) do update set name = excluded.name, status = excluded.status;

-- name: put_sub_tenants
insert into sub_tenants (tenant_id, sub_tenant_id, name)
select tenant_id, id, name from jsonb_to_recordset(%(rows)s) as given (tenant_id text, id text, name text)
on conflict (tenant_id, sub_tenant_id) do update set name = excluded.name;

-- name: delete_sub_tenants
delete from sub_tenants using jsonb_to_recordset(%(rows)s) as given (tenant_id text, keep text[])
where sub_tenants.tenant_id = given.tenant_id and sub_tenants.sub_tenant_id <> all (given.keep);

-- name: put_customers
insert into customers (customer_id, name)
select id, name from jsonb_to_recordset(%(rows)s) as given (id text, name text)
on conflict (customer_id) do update set name = excluded.name;

-- name: put_endpoints
insert into endpoints (
    endpoint_id, customer_id, url, mode, status,
    auth_kind, auth_username, auth_header, auth_client_id, auth_token_url, auth_token_scope,
    content_mode, payload, headers, tls_authorities, tls_certificate, max_in_flight, max_per_second,
    batch_max_events, batch_max_wait_s, batch_max_bytes, batch_gzip,
    retry_schedule_s, retry_max_age_s, retry_timeout_s, order_by, validation, description, metadata
)
select * from jsonb_to_recordset(%(rows)s) as given (
    id text, customer text, url text, mode text, status text,
    auth_kind text, auth_username text, auth_header text, auth_client_id text, auth_token_url text, auth_token_scope text,
    content_mode text, payload text, headers jsonb, tls_authorities text, tls_certificate text, max_in_flight integer,
    max_per_second double precision,
    batch_max_events integer, batch_max_wait_s double precision, batch_max_bytes integer, batch_gzip boolean,
    retry_schedule_s double precision[], retry_max_age_s double precision, retry_timeout_s double precision, order_by text,
    validation text, description text, metadata jsonb
)
on conflict (endpoint_id) do update set
    customer_id = excluded.customer_id, url = excluded.url, mode = excluded.mode, status = excluded.status,
    auth_kind = excluded.auth_kind, auth_username = excluded.auth_username, auth_header = excluded.auth_header,
    auth_client_id = excluded.auth_client_id, auth_token_url = excluded.auth_token_url,
    auth_token_scope = excluded.auth_token_scope, content_mode = excluded.content_mode, payload = excluded.payload,
    headers = excluded.headers,
    tls_authorities = excluded.tls_authorities, tls_certificate = excluded.tls_certificate,
    max_in_flight = excluded.max_in_flight, max_per_second = excluded.max_per_second,
    batch_max_events = excluded.batch_max_events, batch_max_wait_s = excluded.batch_max_wait_s,
    batch_max_bytes = excluded.batch_max_bytes, batch_gzip = excluded.batch_gzip,
    retry_schedule_s = excluded.retry_schedule_s, retry_max_age_s = excluded.retry_max_age_s,
    retry_timeout_s = excluded.retry_timeout_s, order_by = excluded.order_by, validation = excluded.validation,
    description = excluded.description, metadata = excluded.metadata;

-- name: put_secret
insert into secrets (secret_id, endpoint_id, customer_id, purpose, key_id, sealed)
values (%(secret_id)s, %(endpoint_id)s, %(customer_id)s, %(purpose)s, %(key_id)s, %(sealed)s);

-- name: put_secrets
-- Inserts the rows in the order of the list, so that the newest secret, which comes last, is read first.
insert into secrets (secret_id, endpoint_id, customer_id, purpose, key_id, sealed, created_at)
select
    secret_id, endpoint_id, customer_id, purpose, key_id, decode(sealed, 'base64'),
    clock_timestamp() + place * interval '1 microsecond'
from rows from (
    jsonb_to_recordset(%(rows)s)
    as (secret_id uuid, endpoint_id text, customer_id text, purpose text, key_id text, sealed text)
) with ordinality as given (secret_id, endpoint_id, customer_id, purpose, key_id, sealed, place)
order by place;

-- name: delete_secrets
-- Also deletes expired secrets, because they count as deleted.
delete from secrets using jsonb_to_recordset(%(rows)s) as given (endpoint_id text, purposes text[])
where secrets.endpoint_id = given.endpoint_id and secrets.purpose = any (given.purposes);

-- name: disable_active_endpoints
-- Rows are locked in the order of their ids, so that two concurrent calls do not deadlock.
with active as (
    select endpoint_id
    from endpoints
    join unnest(%(ids)s::text[], %(url_hashes)s::bytea[]) as attempted (endpoint_id, url_sha256) using (endpoint_id)
    where status = 'active'
        and (active_since is null or active_since <= now() - make_interval(secs => %(active_s)s))
        and (url_sha256 is null or url_sha256 = sha256(convert_to(url, 'UTF8')))
    order by endpoint_id for update of endpoints
)
update endpoints set status = 'disabled', disabled_reason = %(reason)s
where endpoint_id in (select endpoint_id from active)
returning endpoint_id;

-- name: set_actor
-- The actor of the audit entries that triggers write, until the end of the transaction.
select set_config('fanout.actor', %(actor)s, true);

-- name: lock_endpoint_status
select customer_id, awaits_permission, status, disabled_reason from endpoints where endpoint_id = %(endpoint_id)s for update;

-- name: set_status
update endpoints set status = %(status)s, disabled_reason = %(reason)s
where endpoint_id = %(endpoint_id)s and (status, disabled_reason) is distinct from (%(status)s, %(reason)s::text);

-- name: customer_of_endpoint
select customer_id from endpoints where endpoint_id = %(endpoint_id)s;

-- name: lock_owned_endpoint
-- Locks out every other writer of the endpoint and of its secrets, such as the API.
select customer_id from endpoints where endpoint_id = %(endpoint_id)s for update;

-- name: expire_signing_secrets
-- An expiry is never extended: with two rotations in one overlap, the oldest secret must not get more time.
update secrets set expires_at = least(expires_at, now() + make_interval(secs => %(overlap_s)s))
where endpoint_id = %(endpoint_id)s and purpose = any (%(purposes)s);

-- name: delete_expired_secrets
delete from secrets where endpoint_id = %(endpoint_id)s and expires_at <= now();

-- name: touch_endpoint
-- Notes the time of a change of the endpoint's secrets, which are in another table.
update endpoints set updated_at = now() where endpoint_id = %(endpoint_id)s;

-- name: overlapping_secrets
select expires_at from secrets where endpoint_id = %(endpoint_id)s and purpose = any (%(purposes)s) order by expires_at;

-- name: put_subscriptions
insert into subscriptions (subscription_id, endpoint_id, customer_id, event_type, scope, status, description, metadata)
select given.id, endpoint_id, customer_id, given.event_type, given.scope, given.status, given.description, given.metadata
from jsonb_to_recordset(%(rows)s) as given (
    id text, endpoint text, event_type text, scope text, status text, description text, metadata jsonb
)
join endpoints on endpoint_id = given.endpoint
on conflict (subscription_id) do update set
    endpoint_id = excluded.endpoint_id, customer_id = excluded.customer_id, event_type = excluded.event_type,
    scope = excluded.scope, status = excluded.status, description = excluded.description, metadata = excluded.metadata;

-- name: delete_scopes
delete from scopes where subscription_id = any (%(ids)s);

-- name: put_scopes
-- Writes by far the most rows: thousands of subscriptions name hundreds of tenants each. COPY cannot be used: Postgres refuses it if
-- row-level security applies to the login.
insert into scopes (subscription_id, scope, effect, tenant_id, sub_tenant_id)
select * from unnest(
    %(subscription_ids)s::text[], %(kinds)s::text[], %(effects)s::text[], %(tenant_ids)s::text[], %(sub_tenant_ids)s::text[]
);

-- name: put_filters
insert into filters (subscription_id, pattern)
select id, pattern from jsonb_to_recordset(%(rows)s) as given (id text, pattern jsonb)
on conflict (subscription_id) do update set pattern = excluded.pattern;

-- name: delete_filters
delete from filters where subscription_id = any (%(ids)s);

-- name: delete_endpoints
delete from endpoints where endpoint_id = any (%(ids)s);

-- name: delete_subscriptions
delete from subscriptions where subscription_id = any (%(ids)s);

-- name: put_event_type
insert into event_types (event_type, description, json_schema, examples, deprecated)
values (%(id)s, %(description)s, %(json_schema)s, %(examples)s, %(deprecated)s)
on conflict (event_type) do update set
    description = excluded.description, json_schema = excluded.json_schema, examples = excluded.examples,
    deprecated = excluded.deprecated;

-- name: revision
select coalesce(max(revision), 0) as revision from revisions;

-- name: apply_lock
-- A lock of the session, taken before the transaction begins. Otherwise the transaction would not see changes that were
-- committed while it waited for the lock.
select pg_advisory_lock(hashtext('fanout.apply'));

-- name: apply_unlock
select pg_advisory_unlock(hashtext('fanout.apply'));

-- name: awaiting_permission
select endpoint_id from endpoints where endpoint_id = any (%(ids)s) and awaits_permission order by endpoint_id;

-- name: put_validation
-- Only the newest question counts; the callback of an earlier question becomes invalid.
insert into validations (endpoint_id, customer_id, url, origin, token_digest, expires_at)
values (%(endpoint_id)s, %(customer_id)s, %(url)s, %(origin)s, %(token_digest)s, now() + make_interval(secs => %(lifetime_s)s))
on conflict (endpoint_id) do update set
    customer_id = excluded.customer_id, url = excluded.url, origin = excluded.origin, token_digest = excluded.token_digest,
    expires_at = excluded.expires_at, answered_at = null;

-- name: open_validation
-- The question of a callback, if it has not expired and the endpoint still has the URL that was asked. An answered question
-- counts as not answered if its permission was forgotten since, for example because the URL was changed and changed back.
select v.customer_id, v.url, v.origin, v.answered_at is not null and not e.awaits_permission as is_answered
from validations v join endpoints e on e.endpoint_id = v.endpoint_id and e.url = v.url and e.validation <> 'none'
where v.endpoint_id = %(endpoint_id)s and v.token_digest = %(token_digest)s and v.expires_at > now();

-- name: mark_validation_answered
update validations set answered_at = now() where endpoint_id = %(endpoint_id)s and token_digest = %(token_digest)s;

-- name: set_permission
update endpoints set permitted_origin = %(origin)s, permitted_per_minute = %(per_minute)s, permitted_at = now()
where endpoint_id = %(endpoint_id)s and url = %(url)s and validation <> 'none' returning endpoint_id;
