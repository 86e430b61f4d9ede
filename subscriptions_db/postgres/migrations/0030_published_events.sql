-- Events that were published over HTTP, by tenant and day, for `api.max_tenant_events_per_day`. The version before works on, and counts
-- nothing.

create table published_events (
    -- In UTC.
    day       date not null,
    -- As the events have it. The tenant need not be registered.
    tenant_id text not null,
    events    bigint not null,
    primary key (day, tenant_id)
) with (fillfactor = 50);
-- The columns that change have no index, and a page has room for a second version of each row: so updates write no index.

grant select, insert, update, delete on published_events to fanout_operator;
