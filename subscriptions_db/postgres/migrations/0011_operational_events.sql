-- Operational events: what `fanout archive` tells customers of their endpoints (docs/adr/0019-operational-events.md).

-- The tenant of these events is the platform, and needs no row. A tenant of this name would have its events rejected.
alter table tenants add constraint tenants_are_not_the_platform check (tenant_id <> 'fanout');

-- What is remembered of an endpoint, which has failed or was given something to tell of. Written in the transaction that archives
-- what it follows from.
create table endpoint_conditions (
    -- No references: what the topics tell of an endpoint may come after its row has gone. `fanout archive` deletes these.
    endpoint_id registry_id primary key,
    customer_id registry_id not null,
    -- subscriptions_db/archive/notifications/endpoint_health.py
    condition   jsonb not null,
    wake_at     timestamptz
);
create index endpoint_conditions_to_wake on endpoint_conditions (wake_at) where wake_at is not null;
create index endpoints_disabled_of_late on endpoints (disabled_at) where status = 'disabled';

-- What is told, until it is in its topic.
create table operational_events (
    number      bigint generated always as identity primary key,
    event_id    text not null,
    kind        text not null,
    endpoint_id registry_id not null,
    customer_id registry_id not null,
    at          timestamptz not null,
    -- As text, in its order.
    data        json not null
);

call keep_customers_apart('endpoint_conditions');
call keep_customers_apart('operational_events');
