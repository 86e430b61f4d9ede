-- Keys that change what their customer has, and read nothing. The version before works on, makes no such key, and refuses them.

alter table api_keys
    drop constraint api_keys_scope_check,
    add constraint api_keys_scope_check check (
        scope in ('operator', 'executor', 'publisher', 'customer_admin', 'registrar', 'read_only', 'write_only', 'poller')
    );
