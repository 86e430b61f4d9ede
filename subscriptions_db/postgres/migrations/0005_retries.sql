-- Endpoints say how the retry lane goes on for them, what is to stay in order, and why they were disabled.

alter table endpoints
    -- The waits between attempts. Null: the job's default; empty: no retries.
    add column retry_schedule_s double precision[] check (
        coalesce(array_ndims(retry_schedule_s), 1) = 1
        and cardinality(retry_schedule_s) <= 50
        and array_position(retry_schedule_s, null) is null
        and 0 < all (retry_schedule_s)
        and 604800 >= all (retry_schedule_s)
    ),
    add column retry_max_age_s double precision check (retry_max_age_s > 0 and retry_max_age_s <= 2592000),
    add column retry_timeout_s double precision check (retry_timeout_s > 0 and retry_timeout_s <= 60),
    -- A field of the payload by its dotted path. A batch is in order by itself.
    add column order_by text check (order_by ~ '^[^.[:space:]]+(\.[^.[:space:]]+)*$' and length(order_by) <= 255),
    add column disabled_reason text check (length(disabled_reason) between 1 and 500),
    add column disabled_at timestamptz,
    add constraint endpoints_no_ordered_batches check (mode <> 'batch' or order_by is null),
    add constraint endpoints_disabled_for_a_reason check (status = 'disabled' or coalesce(disabled_reason, disabled_at::text) is null);

-- Whoever enables an endpoint need not know that there are these two.
create function keep_when_disabled() returns trigger language plpgsql as $$
begin
    if new.status <> 'disabled' then
        new.disabled_reason := null;
        new.disabled_at := null;
    elsif tg_op = 'INSERT' or old.status <> 'disabled' then
        new.disabled_at := now();
    end if;
    return new;
end
$$;
create trigger endpoints_disabled before insert or update of status on endpoints
    for each row execute function keep_when_disabled();
