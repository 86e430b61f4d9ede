-- The payload that an endpoint receives of events in a format of the schema registry. The version before works on, and sends JSON.

alter table endpoints
    add column payload text not null default 'json' check (payload in ('json', 'original'));
