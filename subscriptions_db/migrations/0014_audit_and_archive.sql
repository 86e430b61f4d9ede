-- The audit log has what the commands and the job change, too. The version before works on, and notes what it noted before.

-- By which login to Postgres it was written. Null: before this migration.
alter table audit_log add column login text;
alter table audit_log alter column login set default session_user;

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

-- The search path of the migration, the temporary schema last, as in 0002.
do $$
begin
    execute format('alter function note_what_the_job_disables() set search_path = %s, pg_temp', current_setting('search_path'));
end
$$;
