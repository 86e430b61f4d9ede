-- Statistics of deliveries, counted by `fanout archive` in the transaction that writes the rows. The version before works on, and counts
-- nothing: there are no statistics of the records that it archives.

create table delivery_statistics (
    customer_id   registry_id not null,
    -- Empty: all endpoints of the customer together.
    endpoint_id   text not null,
    -- The beginning of the hour.
    hour          timestamptz not null,
    delivered     bigint not null default 0,
    dead_lettered bigint not null default 0,
    skipped       bigint not null default 0,
    attempts      bigint not null default 0,
    -- Failed attempts by error class.
    error_classes jsonb not null default '{}',
    -- Attempts by duration, and accepted attempts by latency: element n counts bucket n - 1 of subscriptions_db/archive/ingest/hourly_counts.py.
    durations     integer[] not null default '{}',
    latencies     integer[] not null default '{}',
    primary key (customer_id, endpoint_id, hour)
) with (fillfactor = 50);
-- By which old hours are deleted. No update changes an indexed column, and a page has room for a second version of each row: so updates
-- write no index.
create index delivery_statistics_by_age on delivery_statistics (hour);

call keep_customers_apart('delivery_statistics');
grant select on delivery_statistics to fanout_api, fanout_operator;

-- Every role that may archive attempts may count them: otherwise the archive would stand still after this migration.
do $$
declare
    archiver name;
begin
    for archiver in
        select distinct grantee.rolname from pg_class, aclexplode(relacl) as acl join pg_roles as grantee on grantee.oid = acl.grantee
        where pg_class.oid = 'attempts'::regclass and acl.privilege_type = 'INSERT' and acl.grantee <> relowner
    loop
        execute format('grant select, insert, update, delete on delivery_statistics to %I', archiver);
    end loop;
end
$$;
