-- Quotas of single tenants, in place of the setting `api.max_tenant_events_per_day`. The version before works on, with the setting alone.

create table tenant_quotas (
    tenant_id          registry_id primary key references tenants on delete cascade,
    -- Null: the setting.
    max_events_per_day bigint check (max_events_per_day > 0)
);
grant select, insert, update, delete on tenant_quotas to fanout_operator;

-- Every role that archives may look for reached quotas, as in 0032.
do $$
declare
    archiver name;
begin
    for archiver in
        select distinct grantee.rolname from pg_class, aclexplode(relacl) as acl join pg_roles as grantee on grantee.oid = acl.grantee
        where pg_class.oid = 'attempts'::regclass and acl.privilege_type = 'INSERT' and acl.grantee <> relowner
    loop
        execute format('grant select on tenant_quotas to %I', archiver);
    end loop;
end
$$;
