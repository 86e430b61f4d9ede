-- Endpoints whose receivers are asked first whether they want deliveries (HTTP 1.1 Web Hooks for Event Delivery, section 4). The
-- version before works on; but it knows nothing of this, so no endpoint should ask for it while jobs of that version run.

alter table endpoints
    add column validation text not null default 'none' check (validation in ('none', 'cloudevents')),
    -- As whom the receiver lets us send; each delivery says it. Null: it has not permitted any.
    add column permitted_origin text check (permitted_origin ~ '^[!-~]{1,255}$'),
    -- Null: as many as we like.
    add column permitted_per_minute integer check (permitted_per_minute > 0),
    add column permitted_at timestamptz,
    -- Nothing is sent then: the job takes it for paused.
    add column awaits_permission boolean not null generated always as (validation <> 'none' and permitted_origin is null) stored,
    add constraint endpoints_permission_is_for_validation check (validation <> 'none' or permitted_origin is null),
    add constraint endpoints_permission_is_whole check (
        (permitted_origin is null) = (permitted_at is null) and (permitted_origin is not null or permitted_per_minute is null)
    );

-- What was permitted was permitted by the receiver behind that URL. Whoever changes it need not know of this.
create function forget_permission() returns trigger language plpgsql as $$
begin
    if (new.url, new.validation) is distinct from (old.url, old.validation) then
        new.permitted_origin := null;
        new.permitted_per_minute := null;
        new.permitted_at := null;
    end if;
    return new;
end
$$;
create trigger endpoints_permission before update of url, validation on endpoints
    for each row execute function forget_permission();

-- The newest question to an endpoint's receiver. By the token, of which there is the digest only, it may answer later.
create table validations (
    endpoint_id  registry_id primary key,
    customer_id  registry_id not null,
    -- To which it was put: the answer is worth nothing for another one.
    url          text not null,
    origin       text not null,
    token_digest bytea not null check (length(token_digest) = 32),
    expires_at   timestamptz not null,
    answered_at  timestamptz,
    foreign key (endpoint_id, customer_id) references endpoints (endpoint_id, customer_id) on delete cascade on update cascade
);

call keep_customers_apart('validations');
grant select, insert, update, delete on validations to fanout_api, fanout_operator;
