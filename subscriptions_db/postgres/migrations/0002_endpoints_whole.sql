-- Endpoints whole: content modes, headers, OAuth2, TLS, limits, signing schemes, secrets that expire. And a log of changes that
-- names a row once for all its parts, and keeps a bound by itself.

alter table endpoints
    add column content_mode text not null default 'standard'
        check (content_mode in ('standard', 'cloudevents_binary', 'cloudevents_structured')),
    -- Names and values, each a string. What HTTP and the platform keep for themselves is the guard's to refuse: its rules change.
    add column headers jsonb not null default '{}' check (jsonb_typeof(headers) = 'object' and octet_length(headers::text) <= 16384),
    add constraint endpoints_headers_have_names check (
        not jsonb_path_exists(headers, 'strict $.keyvalue() ? (!(@.key like_regex "^[!#$%&''*+.^_`|~0-9A-Za-z-]+$"))', silent => true)
    ),
    add constraint endpoints_headers_have_plain_values check (
        not jsonb_path_exists(headers, 'strict $.* ? (@.type() != "string" || @ like_regex "[^ -~]")', silent => true)
    ),
    add column auth_client_id text check (auth_client_id ~ '^[ -~]+$' and length(auth_client_id) <= 256),
    add column auth_token_url text check (auth_token_url ~ '^https?://[^[:space:]]+$' and length(auth_token_url) <= 2048),
    -- Scopes parted by spaces, in the characters of RFC 6749, section 3.3.
    add column auth_token_scope text check (auth_token_scope ~ '^[!#-[\]-~]+( [!#-[\]-~]+)*$' and length(auth_token_scope) <= 1000),
    -- PEM. Whether it is a certificate, and fits its key, is checked by who reads it.
    add column tls_authorities text check (octet_length(tls_authorities) between 1 and 65536),
    add column tls_certificate text check (octet_length(tls_certificate) between 1 and 49152),
    add column max_in_flight integer check (max_in_flight between 1 and 10000),
    add column max_per_second double precision check (max_per_second > 0 and max_per_second <= 100000),
    drop constraint endpoints_auth_kind_check,
    add constraint endpoints_auth_kind_check check (auth_kind in ('none', 'basic', 'bearer', 'api_key', 'oauth2')),
    add constraint endpoints_client_belongs_to_oauth2 check ((auth_kind = 'oauth2') = (auth_client_id is not null)),
    add constraint endpoints_token_url_belongs_to_oauth2 check ((auth_kind = 'oauth2') = (auth_token_url is not null)),
    add constraint endpoints_token_scope_belongs_to_oauth2 check (auth_kind = 'oauth2' or auth_token_scope is null);

-- The scheme of a signing secret is its purpose, and so a part of what it is sealed for: nobody can turn an ed25519 seed into
-- an HMAC key by changing a column, and a version that does not know the scheme does not sign with it.
--   signing      HMAC key, `v1`           signing_v1a  ed25519 seed, `v1a`
--   auth         password, token, key     tls_key      private key of the client certificate, PEM
-- Only what signs expires: a rotation has an overlap. Nothing set an expiry for `auth`; where plain SQL did, it is carried out.
delete from secrets where purpose = 'auth' and expires_at <= now();
update secrets set expires_at = null where purpose = 'auth' and expires_at is not null;
set constraints all immediate; -- a table with changes that are not logged yet cannot be altered
alter table secrets
    drop constraint secrets_purpose_check,
    add constraint secrets_purpose_check check (purpose in ('signing', 'signing_v1a', 'auth', 'tls_key')),
    drop constraint secrets_sealed_check,
    -- A key of 16 KiB; sealed, it is longer by 29 bytes.
    add constraint secrets_sealed_check check (length(sealed) between 30 and case purpose when 'tls_key' then 16413 else 8192 end),
    add constraint secrets_only_signing_expires check (expires_at is null or purpose in ('signing', 'signing_v1a'));
create unique index secrets_one_for_tls_key on secrets (endpoint_id) where purpose = 'tls_key';

-- As in 0001, and:
-- Parts of one row that follow each other are logged once: a subscription with a hundred scopes is not a hundred changes. What
-- was logged last is remembered in a setting, because a setting ends with its transaction and is undone with its savepoint.
-- The log keeps its newest million numbers. A reader that is further behind reads everything, which it would for far fewer.
-- It runs with its owner's rights: who registers needs none on the log.
create or replace function log_revision() returns trigger language plpgsql security definer as $$
declare
    is_part constant boolean := tg_table_name <> tg_argv[0] || 's';
    row_is constant text := to_jsonb(coalesce(new, old)) ->> tg_argv[1];
    row_was constant text := case tg_op when 'UPDATE' then to_jsonb(old) ->> tg_argv[1] else row_is end;
    logged bigint;
begin
    if is_part and row_was = row_is and current_setting('fanout.logged_last', true) = tg_argv[0] || ' ' || row_is then
        return null;
    end if;
    perform pg_advisory_xact_lock(hashtext('fanout.revisions'));
    -- The row may have moved: what it was before is changed as well.
    if row_was <> row_is then
        insert into revisions (entity, entity_id, change)
        values (tg_argv[0], row_was, case when is_part then 'update' else 'delete' end);
    end if;
    insert into revisions (entity, entity_id, change)
    values (tg_argv[0], row_is, case when is_part then 'update' else lower(tg_op) end)
    returning revision into logged;
    perform set_config('fanout.logged_last', tg_argv[0] || ' ' || row_is, true);
    if logged % 10000 = 0 then
        delete from revisions where revision <= logged - 1000000;
    end if;
    notify fanout_registry;
    return null;
end
$$;

-- The search path of the migration, as before. The temporary schema last: with its owner's rights, the function must not take
-- somebody's temporary table for the log.
do $$
begin
    execute format('alter function log_revision() set search_path = %s, pg_temp', current_setting('search_path'));
end
$$;
