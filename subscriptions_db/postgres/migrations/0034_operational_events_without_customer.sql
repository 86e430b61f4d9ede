-- An operational event about a tenant has '' as its customer, and no null: the version before encodes the column when it publishes the event.
-- So the version before works on, and publishes these events without a sub-tenant, as this version does.

-- As registry_id, or empty.
create domain registry_id_or_empty as text
    check (value ~ '^([A-Za-z0-9][A-Za-z0-9_.:-]{0,127})?$');

-- Postgres changes no type of a column that a policy names.
drop policy own_customer on operational_events;
alter table operational_events alter column customer_id type registry_id_or_empty;
create policy own_customer on operational_events as restrictive to fanout_api
    using (customer_id = current_setting('fanout.customer_id', true)) with check (customer_id = current_setting('fanout.customer_id', true));
update operational_events set customer_id = '' where customer_id is null;
alter table operational_events alter column customer_id set not null;
