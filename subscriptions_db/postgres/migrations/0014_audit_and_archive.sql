-- The audit log has what the commands and the job change, too; and Postgres itself refuses a letter that is archived twice. The version
-- before works on, and notes what it noted before.

-- The job may set two columns of endpoints, and has no right on the log. So what it disables is noted here, in its transaction, with
-- the owner's rights, as log_revision does. Everybody else notes by themselves what they change.
create function note_what_the_job_disables() returns trigger language plpgsql security definer as $$
begin
    insert into audit_log (key_id, customer_id, action, entity, entity_id, before, after)
    values (
        'job', new.customer_id, 'update', 'endpoint', new.endpoint_id,
        jsonb_build_object('status', old.status, 'disabled_reason', old.disabled_reason),
        jsonb_build_object('status', new.status, 'disabled_reason', new.disabled_reason)
    );
    return null;
end
$$;
create trigger endpoints_disabled_by_the_job after update of status on endpoints for each row
    when (new.status = 'disabled' and old.status <> 'disabled' and current_setting('fanout.actor', true) = 'job')
    execute function note_what_the_job_disables();

-- By which login to Postgres it was written. Null: before this migration.
alter table audit_log add column login text;
alter table audit_log alter column login set default session_user;

-- How often the topic was made anew: its offsets begin at zero again then, and the same ones may come on the same day.
alter table archive_offsets add column incarnation integer not null default 0;
alter table dead_letters add column letter_incarnation integer not null default 0;

-- As in 0007, and a record's place stands once in a day. A guard beside `archive_offsets`, which makes each letter exactly once: what
-- it refuses is a fault of ours, and is left out by itself. Over all days there can be none, for it would have to hold the
-- position; and days that are there already have none. A topic that is made anew while the version before still archives has
-- its letters left out until the next day, where the same offsets came before.
create or replace function make_archive_day(kind text, day date) returns boolean language plpgsql security definer as $$
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
    if kind = 'dead_letters' then
        execute format('create unique index on %I (letter_topic, letter_partition, letter_incarnation, letter_offset)', made);
    end if;
    execute format('alter table %I attach partition %I for values from (%L) to (%L)', kind, made, bounds[1], bounds[2]);
    call keep_customers_apart(made::regclass);
    return true;
end
$$;

-- The search path of the migration, the temporary schema last, as in 0002.
do $$
declare
    name text;
begin
    foreach name in array array['note_what_the_job_disables()', 'make_archive_day(text, date)'] loop
        execute format('alter function %s set search_path = %s, pg_temp', name, current_setting('search_path'));
    end loop;
end
$$;
