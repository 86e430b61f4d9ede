-- The HTTP API: who may ask, what was changed by it, and whose rows each asker sees (docs/adr/0016-roles-and-row-level-security.md).
-- The version before works on with one exception: its `fanout apply` writes scopes by COPY, which Postgres refuses where row-level
-- security holds for the login; so it needs a superuser, or BYPASSRLS, as long as it runs.

-- Two roles without a login: the API steps down to one of them in each transaction.
--   fanout_api       for a customer's key: the rows of the customer that the setting `fanout.customer_id` names, none without it
--   fanout_operator  for the operator's key: all rows
-- Roles are the whole server's: another database's registry may have made them already, perhaps at this moment.
do $$
declare
    wanted text;
begin
    foreach wanted in array array['fanout_api', 'fanout_operator'] loop
        begin
            if not exists (select from pg_roles where rolname = wanted) then
                execute format('create role %I nologin', wanted);
            end if;
        exception
            when duplicate_object or unique_violation then null;
            when insufficient_privilege then
                raise exception 'the role % is missing', wanted
                    using errcode = 'insufficient_privilege', hint = 'As a superuser: create role fanout_api; create role fanout_operator;';
        end;
    end loop;
    execute format('grant usage on schema %I to fanout_api, fanout_operator', current_schema());
end
$$;

-- Who may ask. Of a key there is its digest only; key_id is its beginning, which is no secret.
create table api_keys (
    key_id      text primary key check (key_id ~ '^fk_[a-z2-7]{12}$'),
    -- Null: the operator.
    customer_id registry_id references customers on delete cascade,
    scope       text not null check (scope in ('operator', 'customer_admin', 'read_only', 'poller')),
    name        text not null default '' check (length(name) <= 200),
    digest      bytea not null check (length(digest) = 32),
    created_at  timestamptz not null default now(),
    expires_at  timestamptz,
    revoked_at  timestamptz,
    constraint api_keys_operator_is_no_customer check ((scope = 'operator') = (customer_id is null))
);
create index api_keys_by_customer on api_keys (customer_id);

-- Whose events a customer may subscribe to by itself; null: everybody's, of tenants known and to come. The operator needs no such
-- row, and none is needed for what the operator has registered.
create table customer_tenants (
    customer_id registry_id not null references customers on delete cascade,
    -- No reference to tenants, as in scopes.
    tenant_id   registry_id,
    unique nulls not distinct (customer_id, tenant_id)
);

-- What was changed through the API, by which key. It outlives what it tells of, and holds no secret.
create table audit_log (
    entry_id    bigint generated always as identity primary key,
    at          timestamptz not null default clock_timestamp(),
    key_id      text not null,
    -- Whose row it was; null: nobody's, such as a tenant's.
    customer_id registry_id,
    action      text not null check (length(action) between 1 and 40),
    entity      text not null check (length(entity) between 1 and 40),
    entity_id   text not null check (length(entity_id) <= 255),
    before      jsonb,
    after       jsonb
);
create index audit_log_by_customer on audit_log (customer_id, entry_id);

-- What was answered to a request, for when it is repeated with the same key. Without secrets.
create table idempotency_keys (
    -- Null: the operator.
    customer_id     registry_id references customers on delete cascade,
    idempotency_key text not null check (length(idempotency_key) between 1 and 255),
    request_digest  bytea not null check (length(request_digest) = 32),
    status          integer,
    answer          jsonb,
    created_at      timestamptz not null default now(),
    unique nulls not distinct (customer_id, idempotency_key)
);
create index idempotency_keys_by_age on idempotency_keys (created_at);

-- Keep customers apart in a table. To be called for each table of theirs, by each migration that makes one. `own` is true for the
-- rows of the customer that asks. Forced, so that it holds for the owner as well; but everybody except fanout_api passes, whoever
-- has been granted a right on the table: the job, the commands, plain SQL.
create procedure keep_customers_apart(
    isolated regclass, own text default 'customer_id = current_setting(''fanout.customer_id'', true)'
) language plpgsql as $$
begin
    execute format('alter table %s enable row level security', isolated);
    execute format('alter table %s force row level security', isolated);
    execute format('create policy everybody on %s using (true) with check (true)', isolated);
    execute format('create policy own_customer on %s as restrictive to fanout_api using (%s) with check (%s)', isolated, own, own);
end
$$;

create index subscriptions_by_customer on subscriptions (customer_id, subscription_id);

call keep_customers_apart('customers');
call keep_customers_apart('customer_tenants');
call keep_customers_apart('endpoints');
call keep_customers_apart('secrets');
call keep_customers_apart('subscriptions');
-- Parts of a subscription, which is seen by its own policy.
call keep_customers_apart('scopes', 'subscription_id in (select subscription_id from subscriptions)');
call keep_customers_apart('filters', 'subscription_id in (select subscription_id from subscriptions)');
call keep_customers_apart('api_keys');
call keep_customers_apart('audit_log');
call keep_customers_apart('idempotency_keys');

grant select on customers, customer_tenants to fanout_api;
grant select, insert, update, delete on endpoints, secrets, subscriptions, scopes, filters, idempotency_keys to fanout_api;
grant select, insert on audit_log to fanout_api;
grant select (revision) on revisions to fanout_api; -- a number, and not whose change it was

grant select, insert, update, delete on
    tenants, sub_tenants, customers, customer_tenants, endpoints, secrets, subscriptions, scopes, filters, idempotency_keys
    to fanout_operator;
grant select, insert on audit_log to fanout_operator;
grant select on api_keys, revisions, migrations to fanout_operator;
