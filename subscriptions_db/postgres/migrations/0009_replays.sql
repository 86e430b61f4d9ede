-- Replays: what customers ask to be delivered again, a time or one delivery. `fanout archive` carries them out.
-- docs/adr/0018-replays.md says why it is made so. The version before goes on; what it archives cannot be sent again by its attempt.

create table replays (
    replay_id       text primary key check (replay_id ~ '^rpl_[0-9a-f]{24}$'),
    -- The order of a list.
    number          bigint generated always as identity,
    customer_id     registry_id not null references customers on delete cascade,
    -- No reference: what became of a replay is told after its endpoint is gone, too.
    endpoint_id     registry_id not null,
    -- Either a time, and of which types of events (null: all) …
    since           timestamptz,
    until           timestamptz,
    event_types     text[],
    -- … or one delivery, and where its event is.
    webhook_id      text,
    subscription_id registry_id,
    topic           text,
    partition       integer,
    "offset"        bigint,
    state           text not null default 'waiting' check (state in ('waiting', 'running', 'done', 'failed', 'cancelled')),
    reason          text check (length(reason) <= 64),
    -- False: Kafka may hold no more of all that was asked for.
    is_whole        boolean not null default true,
    created_at      timestamptz not null default now(),
    state_since     timestamptz not null default now(),
    records         bigint not null default 0,
    handed_over     bigint not null default 0,
    delivered       bigint not null default 0,
    dead_lettered   bigint not null default 0,
    skipped         bigint not null default 0,
    constraint replays_ask_for_one_thing check (
        (num_nulls(since, until) = 0 and num_nonnulls(webhook_id, subscription_id, topic, partition, "offset") = 0)
        or (num_nonnulls(since, until, event_types) = 0 and num_nulls(webhook_id, subscription_id, topic, partition, "offset") = 0)
    )
);
-- One time at once for each endpoint, and each delivery once.
create unique index replays_at_once on replays (endpoint_id, coalesce(webhook_id, '')) where state in ('waiting', 'running');
create index replays_by_customer on replays (customer_id, number);
create index replays_to_carry_out on replays (number) where state in ('waiting', 'running');

-- How far a replay of a time is, in each partition. Written when Kafka has what was handed over.
create table replay_places (
    replay_id   text not null references replays on delete cascade,
    topic       text not null,
    partition   integer not null,
    next_offset bigint not null,
    end_offset  bigint not null,
    primary key (replay_id, topic, partition)
);

-- Where the event of an attempt is in Kafka; null for a batch, which has many, and for what was archived before.
alter table attempts add column topic text, add column partition integer, add column "offset" bigint;

call keep_customers_apart('replays');
call keep_customers_apart('replay_places', 'replay_id in (select replay_id from replays)');

grant select, insert, update (state, state_since) on replays to fanout_api, fanout_operator;
