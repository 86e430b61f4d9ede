-- The registry: who receives what. docs/glossary.md explains the names.
-- The constraints live here, because plain SQL is a first-class way to register.

-- Ids are chosen by whoever registers. They become Kafka keys, log fields and parts of URLs.
create domain registry_id as text
    check (value ~ '^[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}$');

-- An exact event type, a prefix wildcard such as order.*, or * for all.
create domain event_type_pattern as text
    check (value ~ '^(\*|[A-Za-z0-9][A-Za-z0-9_:/-]*(\.[A-Za-z0-9_:/-]+)*(\.\*)?)$' and length(value) <= 255);

-- An organisation whose events flow through Kafka.
create table tenants (
    tenant_id registry_id primary key,
    name      text not null default '' check (length(name) <= 200),
    status    text not null default 'active' check (status in ('active', 'suspended'))
);

-- A department of a tenant.
create table sub_tenants (
    tenant_id     registry_id not null references tenants on delete cascade,
    sub_tenant_id registry_id not null,
    name          text not null default '' check (length(name) <= 200),
    primary key (tenant_id, sub_tenant_id)
);

-- The owner of endpoints: whom the platform delivers to, and the unit of isolation.
create table customers (
    customer_id registry_id primary key,
    name        text not null default '' check (length(name) <= 200)
);

-- Where a customer takes deliveries.
create table endpoints (
    endpoint_id   registry_id primary key,
    customer_id   registry_id not null references customers on delete cascade,
    url           text not null check (url ~ '^https?://[^[:space:]]+$' and length(url) <= 2048),
    mode          text not null default 'direct' check (mode in ('direct', 'batch')),
    status        text not null default 'active' check (status in ('active', 'paused', 'disabled')),
    auth_kind     text not null default 'none' check (auth_kind in ('none', 'basic', 'bearer', 'api_key')),
    auth_username text check (length(auth_username) between 1 and 200 and position(':' in auth_username) = 0),
    auth_header   text check (auth_header ~ '^[A-Za-z0-9-]{1,128}$'),
    created_at    timestamptz not null default now(),
    -- For the foreign keys that keep a secret's and a subscription's customer the same as their endpoint's.
    unique (endpoint_id, customer_id),
    constraint endpoints_username_belongs_to_basic check ((auth_kind = 'basic') = (auth_username is not null)),
    constraint endpoints_header_belongs_to_api_key check ((auth_kind = 'api_key') = (auth_header is not null))
);
create index endpoints_by_customer on endpoints (customer_id);

-- A secret of an endpoint, sealed; see subscriptions_db/secrets/keyring.py. Several for signing while a rotation lasts.
create table secrets (
    secret_id   uuid primary key,
    endpoint_id registry_id not null,
    customer_id registry_id not null,
    purpose     text not null check (purpose in ('signing', 'auth')),
    key_id      text not null check (length(key_id) between 1 and 64),
    sealed      bytea not null check (length(sealed) between 30 and 8192),
    created_at  timestamptz not null default clock_timestamp(),
    expires_at  timestamptz,
    -- Without `on update cascade` on purpose: a secret is sealed for its endpoint and customer and would not open elsewhere,
    -- so an endpoint that has one keeps its id and its customer.
    foreign key (endpoint_id, customer_id) references endpoints (endpoint_id, customer_id) on delete cascade
);
create index secrets_by_endpoint on secrets (endpoint_id);
create index secrets_by_key on secrets (key_id);
create unique index secrets_one_for_auth on secrets (endpoint_id) where purpose = 'auth';

-- Which events go to an endpoint.
create table subscriptions (
    subscription_id registry_id primary key,
    endpoint_id     registry_id not null,
    customer_id     registry_id not null,
    event_type      event_type_pattern not null,
    -- Said outright, and not by the absence of scope rows: a deleted tenant must never widen a subscription.
    scope           text not null check (scope in ('everything', 'selected')),
    status          text not null default 'active' check (status in ('active', 'paused')),
    unique (subscription_id, scope),
    foreign key (endpoint_id, customer_id) references endpoints (endpoint_id, customer_id) on delete cascade on update cascade
);
create index subscriptions_by_endpoint on subscriptions (endpoint_id);

-- Whose events: tenants or sub-tenants that a subscription includes or excludes.
create table scopes (
    subscription_id registry_id not null,
    scope           text not null,
    effect          text not null check (effect in ('include', 'exclude')),
    -- No reference to tenants on purpose: an exclusion must outlive the tenant's row, or deleting it would widen the scope.
    tenant_id       registry_id not null,
    sub_tenant_id   registry_id,
    unique nulls not distinct (subscription_id, tenant_id, sub_tenant_id, effect),
    foreign key (subscription_id, scope) references subscriptions (subscription_id, scope) on delete cascade on update cascade,
    constraint scopes_everything_takes_exclusions_only check (scope = 'selected' or effect = 'exclude')
);

-- What the content must be like; see delivery/webhooks/filters/event_pattern.py.
create table filters (
    subscription_id registry_id primary key references subscriptions on delete cascade,
    pattern         jsonb not null check (jsonb_typeof(pattern) = 'object' and octet_length(pattern::text) <= 20000)
);

-- One row for each changed row of each committed transaction.
create table revisions (
    revision   bigint generated always as identity primary key,
    changed_at timestamptz not null default clock_timestamp(),
    entity     text not null check (entity in ('tenant', 'customer', 'endpoint', 'subscription')),
    entity_id  text not null,
    change     text not null check (change in ('insert', 'update', 'delete')),
    changed_by text not null default session_user
);

-- Log a change and wake the readers. Runs deferred, just before the commit, under a lock that is held until the commit is
-- done: so the order of the numbers is the order of the commits, and a reader that asks for what came after a number never
-- misses one that commits later. Taking the lock at the first write instead would make every writer wait for the slowest.
-- A row that is a part of another (a scope of its subscription) is logged as an update of that one.
-- The search path is that of the migration: a writer with another one must be able to commit.
create function log_revision() returns trigger language plpgsql set search_path from current as $$
declare
    changed jsonb := to_jsonb(coalesce(new, old));
    is_part boolean := tg_table_name <> tg_argv[0] || 's';
begin
    perform pg_advisory_xact_lock(hashtext('fanout.revisions'));
    insert into revisions (entity, entity_id, change)
    values (tg_argv[0], changed ->> tg_argv[1], case when is_part then 'update' else lower(tg_op) end);
    -- The row may have moved: what it was before is changed as well.
    if tg_op = 'UPDATE' and to_jsonb(old) ->> tg_argv[1] is distinct from changed ->> tg_argv[1] then
        insert into revisions (entity, entity_id, change)
        values (tg_argv[0], to_jsonb(old) ->> tg_argv[1], case when is_part then 'update' else 'delete' end);
    end if;
    notify fanout_registry;
    return null;
end
$$;

create constraint trigger tenants_revision after insert or update or delete on tenants
    deferrable initially deferred for each row execute function log_revision('tenant', 'tenant_id');
create constraint trigger sub_tenants_revision after insert or update or delete on sub_tenants
    deferrable initially deferred for each row execute function log_revision('tenant', 'tenant_id');
create constraint trigger customers_revision after insert or update or delete on customers
    deferrable initially deferred for each row execute function log_revision('customer', 'customer_id');
create constraint trigger endpoints_revision after insert or update or delete on endpoints
    deferrable initially deferred for each row execute function log_revision('endpoint', 'endpoint_id');
create constraint trigger secrets_revision after insert or update or delete on secrets
    deferrable initially deferred for each row execute function log_revision('endpoint', 'endpoint_id');
create constraint trigger subscriptions_revision after insert or update or delete on subscriptions
    deferrable initially deferred for each row execute function log_revision('subscription', 'subscription_id');
create constraint trigger scopes_revision after insert or update or delete on scopes
    deferrable initially deferred for each row execute function log_revision('subscription', 'subscription_id');
create constraint trigger filters_revision after insert or update or delete on filters
    deferrable initially deferred for each row execute function log_revision('subscription', 'subscription_id');

-- TRUNCATE fires no row trigger, so readers would not learn of it.
create function refuse_truncate() returns trigger language plpgsql as $$
begin
    raise exception 'TRUNCATE of % would go unseen by running jobs', tg_table_name
        using hint = 'Use DELETE: its rows are logged in revisions.';
end
$$;
create trigger tenants_no_truncate before truncate on tenants execute function refuse_truncate();
create trigger sub_tenants_no_truncate before truncate on sub_tenants execute function refuse_truncate();
create trigger customers_no_truncate before truncate on customers execute function refuse_truncate();
create trigger endpoints_no_truncate before truncate on endpoints execute function refuse_truncate();
create trigger secrets_no_truncate before truncate on secrets execute function refuse_truncate();
create trigger subscriptions_no_truncate before truncate on subscriptions execute function refuse_truncate();
create trigger scopes_no_truncate before truncate on scopes execute function refuse_truncate();
create trigger filters_no_truncate before truncate on filters execute function refuse_truncate();
create trigger revisions_no_truncate before truncate on revisions execute function refuse_truncate();
