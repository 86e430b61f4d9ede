-- Since when an endpoint is active: one that was enabled or resumed a while ago is not disabled for what it failed before. Null: since
-- before this migration. The version before works on, and disables such an endpoint as it did.

alter table endpoints add column active_since timestamptz;

create or replace function keep_when_disabled() returns trigger language plpgsql as $$
begin
    if new.status <> 'disabled' then
        new.disabled_reason := null;
        new.disabled_at := null;
    elsif tg_op = 'INSERT' or old.status <> 'disabled' then
        new.disabled_at := now();
    end if;
    if new.status = 'active' and (tg_op = 'INSERT' or old.status <> 'active') then
        new.active_since := now();
    end if;
    return new;
end
$$;
