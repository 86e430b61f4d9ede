-- Endpoints in batch mode say when a batch leaves, and whether it is compressed.

alter table endpoints
    add column batch_max_events integer not null default 1000 check (batch_max_events between 1 and 10000),
    add column batch_max_wait_s double precision not null default 1 check (batch_max_wait_s > 0 and batch_max_wait_s <= 86400),
    -- At least what one event of a kilobyte takes; at most what a customer's server may be expected to take.
    add column batch_max_bytes integer not null default 1048576 check (batch_max_bytes between 4096 and 10485760),
    add column batch_gzip boolean not null default false;

-- One event's attributes are headers in this mode; those of many have no place there.
update endpoints set content_mode = 'cloudevents_structured' where mode = 'batch' and content_mode = 'cloudevents_binary';
set constraints all immediate; -- a table with changes that are not logged yet cannot be altered
alter table endpoints
    add constraint endpoints_no_binary_batches check (mode <> 'batch' or content_mode <> 'cloudevents_binary');

-- Each lane knows the registry as of a moment of its own, and leaves to the other what is in the other's mode. If a mode could
-- change, an event between those moments could be left by both, and be lost.
create function refuse_other_mode() returns trigger language plpgsql set search_path from current as $$
begin
    if tg_table_name = 'endpoints' then
        raise exception 'the mode of endpoint % cannot change', old.endpoint_id
            using errcode = 'check_violation', hint = 'Register another endpoint, subscribe it, and then delete this one.';
    elsif (select mode from endpoints where endpoint_id = new.endpoint_id)
       is distinct from (select mode from endpoints where endpoint_id = old.endpoint_id) then
        raise exception 'subscription % cannot move to an endpoint of another mode', old.subscription_id
            using errcode = 'check_violation', hint = 'Register another subscription to that endpoint, and then delete this one.';
    end if;
    return new;
end
$$;
create trigger endpoints_keep_their_mode before update of mode on endpoints
    for each row when (old.mode is distinct from new.mode) execute function refuse_other_mode();
create trigger subscriptions_keep_their_mode before update of endpoint_id on subscriptions
    for each row when (old.endpoint_id is distinct from new.endpoint_id) execute function refuse_other_mode();
