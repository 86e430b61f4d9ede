-- Keys of publishers: they write events, and belong to no customer.

alter table api_keys
    -- The tenants for which a publisher's key may publish; null: for every tenant. No reference to tenants, as in scopes.
    add column tenants registry_id[] check (cardinality(tenants) > 0),
    add constraint api_keys_only_publishers_name_tenants check (tenants is null or scope = 'publisher'),
    drop constraint api_keys_scope_check,
    add constraint api_keys_scope_check
        check (scope in ('operator', 'executor', 'publisher', 'customer_admin', 'read_only', 'poller')),
    drop constraint api_keys_operator_is_no_customer,
    add constraint api_keys_operator_is_no_customer
        check ((scope in ('operator', 'executor', 'publisher')) = (customer_id is null));
