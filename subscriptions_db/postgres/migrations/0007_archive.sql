-- The archive: dead letters for customers to poll, and recent attempts. `fanout archive` writes both from their topics.
-- docs/adr/0017-archive.md says why it is made so.

-- Up to where each partition of a topic is archived. Written in the transaction that writes the rows, which makes them exactly
-- once: a unique constraint on (topic, partition, offset) would have to hold the day, and so would not hold across midnight.
create table archive_offsets (
    topic       text not null,
    partition   integer not null check (partition >= 0),
    next_offset bigint not null default 0 check (next_offset >= 0),
    primary key (topic, partition)
);

-- A position says the day of the archive, then the order: the day's first one plus a number of the sequence. So it alone leads to
-- its partition, and those behind a cursor are in its partition and the ones after. Up to the year 2059 a double holds it exactly.
create sequence dead_letter_positions maxvalue 274877906943;
create function first_position_of(day date) returns bigint language sql immutable parallel safe as $$
    select (day - date '1970-01-01') * 274877906944::bigint
$$;

-- The day of the archive, which never goes back, whatever clocks do. Whoever writes takes this row first, and has it until the commit
-- is done. So whoever sees a position sees all lower ones that there will ever be, and a cursor never passes a letter that becomes
-- visible later.
create table dead_letter_day (
    only_one boolean primary key default true check (only_one),
    day      date not null default '1970-01-01'
);
insert into dead_letter_day default values;

create table dead_letters (
    position         bigint primary key,
    archived_at      timestamptz not null,
    customer_id      registry_id not null,
    endpoint_id      registry_id not null,
    tenant_id        registry_id not null,
    -- No longer than a subscription's pattern, which is what is asked for; the letter has the whole one.
    event_type       text not null check (length(event_type) <= 255),
    reason           text not null check (length(reason) <= 64),
    webhook_id       text not null,
    dead_lettered_at timestamptz not null,
    payload          bytea not null,
    -- The record of the topic as it was written, less the payload: JSON may hold what neither text nor jsonb do.
    letter           bytea not null,
    letter_topic     text not null,
    letter_partition integer not null,
    letter_offset    bigint not null,
    state            text not null default 'waiting' check (state in ('waiting', 'redriving', 'redriven', 'discarded')),
    state_since      timestamptz not null default now()
) partition by range (position);

-- All that a poll asks about, so that it looks at no letter that it does not give.
create index dead_letters_waiting on dead_letters (customer_id, position)
    include (endpoint_id, event_type, tenant_id, reason, dead_lettered_at, archived_at) where state = 'waiting';
create index dead_letters_redriving on dead_letters (position) where state = 'redriving';

-- Wakes who waits for letters, and has whoever inserts without asking for the day wait for those who did.
create function order_dead_letters() returns trigger language plpgsql set search_path from current as $$
begin
    perform from dead_letter_day for update;
    notify fanout_dead_letters;
    return null;
end
$$;
create trigger dead_letters_in_order before insert on dead_letters for each statement execute function order_dead_letters();

-- Some pollers of one customer who share the work. All up to `read_until` was given to one of them, or is none of theirs.
create table dead_letter_consumers (
    customer_id registry_id not null references customers on delete cascade,
    name        text not null check (name ~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$'),
    endpoint_id registry_id,
    event_type  text check (length(event_type) <= 255),
    tenant_id   registry_id,
    reason      text check (length(reason) <= 64),
    read_until  bigint not null default 0,
    created_at  timestamptz not null default now(),
    primary key (customer_id, name)
);

-- A letter that was given to a poller, and is not acknowledged. Without a token nobody has it, and it is given again at `until`.
create table dead_letter_leases (
    customer_id registry_id not null,
    consumer    text not null,
    position    bigint not null,
    token       uuid,
    until       timestamptz not null,
    times       integer not null,
    primary key (customer_id, consumer, position),
    foreign key (customer_id, consumer) references dead_letter_consumers on delete cascade
);
create index dead_letter_leases_until on dead_letter_leases (customer_id, consumer, until);

create sequence attempt_positions cache 100;

create table attempts (
    started_at      timestamptz not null,
    position        bigint not null default nextval('attempt_positions'),
    customer_id     registry_id not null,
    endpoint_id     registry_id not null,
    webhook_id      text not null,
    -- A batch has many of these, and says how many: they are null.
    event_id        text,
    event_type      text check (length(event_type) <= 255),
    tenant_id       registry_id,
    subscription_id registry_id,
    events          integer not null default 1,
    attempt         integer not null,
    duration_ms     real not null,
    status          integer,
    error_class     text,
    detail          text not null default '',
    primary key (customer_id, started_at, position)
) partition by range (started_at);
create index attempts_of_endpoint on attempts (customer_id, endpoint_id, started_at, position);

-- A day of a partitioned table. To who comes through that table, only that table's policies apply; so the day has its own.
-- Days are made and dropped with the owner's rights, which the archive's role need not have.
create function make_archive_day(kind text, day date) returns boolean language plpgsql security definer as $$
declare
    made constant text := kind || to_char(day, '_YYYYMMDD');
    bounds constant text[] := case kind
        when 'dead_letters' then array[first_position_of(day)::text, first_position_of(day + 1)::text]
        else array[day || ' 00:00+00', day + 1 || ' 00:00+00']
    end;
begin
    if kind not in ('dead_letters', 'attempts') then
        raise exception '% has no days', kind using errcode = 'invalid_parameter_value';
    end if;
    if to_regclass(made) is not null then
        return false;
    end if;
    perform pg_advisory_xact_lock(hashtext('fanout.archive_days'));
    -- A query, because what somebody else has made while this waited is not known to to_regclass yet.
    if exists (
        select from pg_inherits join pg_class child on child.oid = inhrelid
        where inhparent = to_regclass(kind) and child.relname = made
    ) then
        return false;
    end if;
    -- Attached, because to create it as a partition would wait for every reader, and have every reader wait for that.
    execute format('create table %I (like %I including all)', made, kind);
    execute format('alter table %I attach partition %I for values from (%L) to (%L)', kind, made, bounds[1], bounds[2]);
    call keep_customers_apart(made::regclass);
    return true;
end
$$;

create function drop_archive_days(kind text, before date) returns setof text language plpgsql security definer as $$
declare
    day record;
begin
    if kind not in ('dead_letters', 'attempts') then
        raise exception '% has no days', kind using errcode = 'invalid_parameter_value';
    end if;
    for day in
        select child.relname from pg_inherits join pg_class child on child.oid = inhrelid
        where inhparent = to_regclass(kind) and to_date(right(child.relname, 8), 'YYYYMMDD') < before
    loop
        execute format('drop table %I', day.relname);
        return next day.relname;
    end loop;
end
$$;
revoke execute on function make_archive_day, drop_archive_days from public;

-- The search path of the migration, the temporary schema last, as in 0002.
do $$
declare
    name text;
begin
    foreach name in array array['make_archive_day(text, date)', 'drop_archive_days(text, date)'] loop
        execute format('alter function %s set search_path = %s, pg_temp', name, current_setting('search_path'));
    end loop;
end
$$;

call keep_customers_apart('dead_letters');
call keep_customers_apart('dead_letter_consumers');
call keep_customers_apart('dead_letter_leases');
call keep_customers_apart('attempts');

grant select, update (state, state_since) on dead_letters to fanout_api, fanout_operator;
grant select, insert, update, delete on dead_letter_consumers, dead_letter_leases to fanout_api, fanout_operator;
grant select on attempts to fanout_api, fanout_operator;
