-- Keys that are limited to endpoints of their customer, keys that only register, and the last use of keys. The version before works on,
-- and makes no such key. It refuses a limited key, whose digest is another (subscriptions_db/api/contract/keys.py).

alter table api_keys
    -- The endpoints to which the key is limited; null: it is not limited. No reference to endpoints: a key that outlives its endpoint
    -- must not become one without a limit.
    add column endpoints registry_id[] check (cardinality(endpoints) between 1 and 100),
    -- About when a request was last made with it; null: never, or before this migration.
    add column last_used_at timestamptz,
    add constraint api_keys_only_customers_name_endpoints check (endpoints is null or customer_id is not null),
    drop constraint api_keys_scope_check,
    add constraint api_keys_scope_check
        check (scope in ('operator', 'executor', 'publisher', 'customer_admin', 'registrar', 'read_only', 'poller'));
grant update (last_used_at) on api_keys to fanout_operator;

-- As keep_customers_apart, within a customer. The setting `fanout.endpoint_ids` lists the endpoints of the key that asks, with commas.
-- Unset or empty: the key is not limited. An endpoint that is deleted stays in the list, so no list becomes empty.
create procedure keep_endpoints_apart(
    isolated regclass, own text default 'endpoint_id = any (string_to_array(current_setting(''fanout.endpoint_ids'', true), '',''))',
    command text default 'all'
) language plpgsql as $$
declare
    -- With `or` in place of `case`, the planner expects one row in 200, and may sort all rows of a customer for one page.
    allowed constant text := format(
        'case when coalesce(current_setting(''fanout.endpoint_ids'', true), '''') = '''' then true else %s end', own
    );
begin
    execute format('create policy own_endpoints on %s as restrictive for %s to fanout_api using (%s)', isolated, command, allowed)
        || case command when 'all' then format(' with check (%s)', allowed) else '' end;
end
$$;

-- As in 0006, and a table with an `endpoint_id` keeps the endpoints apart too. So each day of the archive does.
create or replace procedure keep_customers_apart(
    isolated regclass, own text default 'customer_id = current_setting(''fanout.customer_id'', true)'
) language plpgsql as $$
begin
    execute format('alter table %s enable row level security', isolated);
    execute format('alter table %s force row level security', isolated);
    execute format('create policy everybody on %s using (true) with check (true)', isolated);
    execute format('create policy own_customer on %s as restrictive to fanout_api using (%s) with check (%s)', isolated, own, own);
    if exists (select from pg_attribute where attrelid = isolated and attname = 'endpoint_id' and not attisdropped) then
        call keep_endpoints_apart(isolated);
    end if;
end
$$;

-- Scopes, filters and places of replays follow: a row is seen when its subscription or replay is. The other tables with an `endpoint_id`
-- are the archive's, or no right on them is granted.
call keep_endpoints_apart('endpoints');
call keep_endpoints_apart('secrets');
call keep_endpoints_apart('subscriptions');
call keep_endpoints_apart('validations');
call keep_endpoints_apart('replays');

-- A limited key reads the entries about its endpoints only. Each change by the key gets its entry all the same.
call keep_endpoints_apart('audit_log', $own$
    (entity = 'endpoint' and entity_id = any (string_to_array(current_setting('fanout.endpoint_ids', true), ',')))
    or (entity = 'subscription' and entity_id in (select subscription_id from subscriptions))
$own$, 'select');

-- The first answer is for those with the same limit only. A client's own key has no space.
call keep_endpoints_apart('idempotency_keys', $own$
    starts_with(
        idempotency_key, encode(sha256(convert_to(current_setting('fanout.endpoint_ids', true), 'UTF8')), 'hex') || ' '
    )
$own$);
