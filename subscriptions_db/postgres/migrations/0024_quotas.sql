-- Quotas of single customers, in place of the settings `api.max_…_per_customer`. The version before works on, with the settings alone.

create table customer_quotas (
    customer_id       registry_id primary key references customers on delete cascade,
    -- Null: the setting.
    max_endpoints     integer check (max_endpoints >= 0),
    max_subscriptions integer check (max_subscriptions >= 0)
);
call keep_customers_apart('customer_quotas');
grant select on customer_quotas to fanout_api;
grant select, insert, update, delete on customer_quotas to fanout_operator;
