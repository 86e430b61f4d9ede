-- Descriptions, metadata and times of endpoints and subscriptions. The version before works on. An endpoint or subscription from before
-- this migration has no `updated_at`, and a subscription from before no `created_at`, because these times were not stored.

alter table endpoints
    add column description text not null default '' check (length(description) <= 2000),
    add column metadata jsonb not null default '{}' check (jsonb_typeof(metadata) = 'object' and octet_length(metadata::text) <= 8192),
    add constraint endpoints_metadata_has_names check (
        not jsonb_path_exists(
            metadata, 'strict $.keyvalue() ? (!(@.key like_regex "^[A-Za-z0-9_./-]{1,64}$"))', silent => true
        )
    ),
    add constraint endpoints_metadata_has_texts check (
        not jsonb_path_exists(metadata, 'strict $.* ? (@.type() != "string")', silent => true)
    ),
    add column updated_at timestamptz;
alter table endpoints alter column updated_at set default now();

alter table subscriptions
    add column description text not null default '' check (length(description) <= 2000),
    add column metadata jsonb not null default '{}' check (jsonb_typeof(metadata) = 'object' and octet_length(metadata::text) <= 8192),
    add constraint subscriptions_metadata_has_names check (
        not jsonb_path_exists(
            metadata, 'strict $.keyvalue() ? (!(@.key like_regex "^[A-Za-z0-9_./-]{1,64}$"))', silent => true
        )
    ),
    add constraint subscriptions_metadata_has_texts check (
        not jsonb_path_exists(metadata, 'strict $.* ? (@.type() != "string")', silent => true)
    ),
    add column created_at timestamptz,
    add column updated_at timestamptz;
alter table subscriptions alter column created_at set default now(), alter column updated_at set default now();

-- Always later than before: two changes of a row never have the same time, even if the clock stands still or goes back.
create function note_the_time() returns trigger language plpgsql as $$
begin
    new.updated_at := greatest(clock_timestamp(), old.updated_at + interval '1 microsecond');
    return new;
end
$$;
create trigger endpoints_updated before update on endpoints for each row execute function note_the_time();
create trigger subscriptions_updated before update on subscriptions for each row execute function note_the_time();

-- The job does not read descriptions and metadata. A change of them alone gets no revision, so no executor reads the row again.
create function is_only_described_anew(was jsonb, now_is jsonb) returns boolean language sql immutable as $$
    select (was -> 'description', was -> 'metadata') is distinct from (now_is -> 'description', now_is -> 'metadata')
        and was - '{description,metadata,updated_at}'::text[] = now_is - '{description,metadata,updated_at}'::text[]
$$;

drop trigger endpoints_revision on endpoints;
create constraint trigger endpoints_revision after insert or delete on endpoints
    deferrable initially deferred for each row execute function log_revision('endpoint', 'endpoint_id');
create constraint trigger endpoints_revision_of_update after update on endpoints
    deferrable initially deferred for each row when (not is_only_described_anew(to_jsonb(old), to_jsonb(new)))
    execute function log_revision('endpoint', 'endpoint_id');

drop trigger subscriptions_revision on subscriptions;
create constraint trigger subscriptions_revision after insert or delete on subscriptions
    deferrable initially deferred for each row execute function log_revision('subscription', 'subscription_id');
create constraint trigger subscriptions_revision_of_update after update on subscriptions
    deferrable initially deferred for each row when (not is_only_described_anew(to_jsonb(old), to_jsonb(new)))
    execute function log_revision('subscription', 'subscription_id');
