-- Quotas that are reached, for operational events about them and for the quota of stored dead letters. The version before works on, makes no
-- such event, and refuses no replay.

-- Null: the setting.
alter table customer_quotas add column max_dead_letters integer check (max_dead_letters > 0);

-- `fanout archive` writes the rows. A row is kept until the next event about the quota is permitted.
create table reached_quotas (
    -- subscriptions_db/archive/notifications/quotas.py
    quota       text not null,
    -- The customer, or the tenant if it is a quota of tenants.
    subject_id  registry_id not null,
    -- Null: a quota of tenants. No reference: a row whose customer is deleted is deleted a minute later.
    customer_id registry_id,
    -- The quota, as last seen.
    most        bigint not null,
    -- Null: the subject fell below the quota since.
    reached_at  timestamptz,
    -- When the last event about the quota was made. Null: there is none.
    reported_at timestamptz,
    primary key (quota, subject_id)
);
call keep_customers_apart('reached_quotas');
grant select on reached_quotas to fanout_api, fanout_operator;

-- An event about a tenant is for operators, and has no customer.
alter table operational_events alter column customer_id drop not null;

-- Every role that may archive attempts may look for reached quotas: otherwise the archive would stand still after this migration.
do $$
declare
    archiver name;
begin
    for archiver in
        select distinct grantee.rolname from pg_class, aclexplode(relacl) as acl join pg_roles as grantee on grantee.oid = acl.grantee
        where pg_class.oid = 'attempts'::regclass and acl.privilege_type = 'INSERT' and acl.grantee <> relowner
    loop
        execute format('grant select on customers, customer_quotas, dead_letter_consumers, published_events to %I', archiver);
        execute format('grant select, insert, update, delete on reached_quotas to %I', archiver);
    end loop;
end
$$;
