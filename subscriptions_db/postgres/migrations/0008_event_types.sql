-- The catalogue of event types, and keys for readers of the registry.
--
-- The catalogue has what each type is about, how its payload looks, and examples. It says nothing of what is delivered:
-- topics have the types that they have.

create table event_types (
    event_type  registry_id primary key,
    description text not null default '' check (length(description) <= 2000),
    -- JSON Schema 2020-12 of the payload; null: none. As json, which keeps the order that its author gave it.
    json_schema json check (json_typeof(json_schema) = 'object' and octet_length(json_schema::text) <= 65536),
    examples    json not null default '[]' check (json_typeof(examples) = 'array' and octet_length(examples::text) <= 65536),
    deprecated  boolean not null default false,
    changed_at  timestamptz not null default now()
);

create function note_the_change() returns trigger language plpgsql as $$
begin
    new.changed_at := now();
    return new;
end
$$;
create trigger event_types_changed before update on event_types for each row execute function note_the_change();

-- Nobody's, and so everybody's: each customer reads the whole catalogue.
call keep_customers_apart('event_types', 'true');
grant select on event_types to fanout_api;
grant select, insert, update, delete on event_types to fanout_operator;

-- Whoever follows the registry over HTTP is no customer, and no operator either.
alter table api_keys
    drop constraint api_keys_scope_check,
    add constraint api_keys_scope_check check (scope in ('operator', 'executor', 'customer_admin', 'read_only', 'poller')),
    drop constraint api_keys_operator_is_no_customer,
    add constraint api_keys_operator_is_no_customer check ((scope in ('operator', 'executor')) = (customer_id is null));
