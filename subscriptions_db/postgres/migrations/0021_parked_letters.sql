-- Parked dead letters: given to a consumer `max_receives` times without an ack, and not given again. The version before parks
-- nothing, and leases no row whose `until` is infinite. Three differences remain while it runs, and after a rollback to it:
-- 1. Its nack by the last receipt handle of a parked dead letter makes `until` finite: the trigger below unparks that dead letter.
-- 2. It counts parked dead letters as unacknowledged, so 10,000 of them stop new ones.
-- 3. Only a seek makes it give parked dead letters again. docs/kubernetes.md says what to do before a rollback.

alter table dead_letter_consumers add column max_receives integer check (max_receives between 1 and 1000);
-- Null: not parked. A parked dead letter has an infinite `until`.
alter table dead_letter_leases add column parked_at timestamptz;
create index dead_letter_leases_parked on dead_letter_leases (customer_id, consumer, position) where parked_at is not null;

create function unpark_finite_lease() returns trigger language plpgsql as $$
begin
    new.parked_at := null;
    return new;
end
$$;
create trigger dead_letter_leases_unpark before update on dead_letter_leases for each row
when (new.parked_at is not null and new.until < 'infinity') execute function unpark_finite_lease();

-- As in 0007. A poll deletes the leases of dropped dead letters, and no poll reads parked ones: so they are deleted here.
create or replace function drop_archive_days(kind text, before date) returns setof text language plpgsql security definer as $$
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
    if found and kind = 'dead_letters' then
        delete from dead_letter_leases where parked_at is not null and position < first_position_of(before);
    end if;
end
$$;

-- The search path of the migration, the temporary schema last, as in 0002.
do $$
begin
    execute format(
        'alter function drop_archive_days(text, date) set search_path = %s, pg_temp', current_setting('search_path')
    );
end
$$;
