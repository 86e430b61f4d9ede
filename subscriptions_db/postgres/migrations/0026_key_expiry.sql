-- Operational events about API keys that expire soon. The version before works on, and makes no such event.

-- When the event about the key was made; null: not yet. Each key has at most one.
alter table api_keys add column expiry_told_at timestamptz;

-- Every role that may archive attempts may make these events: otherwise the archive would stand still after this migration. Such a role
-- does not read the digests of the keys.
do $$
declare
    archiver name;
begin
    for archiver in
        select distinct grantee.rolname from pg_class, aclexplode(relacl) as acl join pg_roles as grantee on grantee.oid = acl.grantee
        where pg_class.oid = 'attempts'::regclass and acl.privilege_type = 'INSERT' and acl.grantee <> relowner
    loop
        execute format(
            'grant select (key_id, customer_id, scope, name, expires_at, revoked_at, expiry_told_at), update (expiry_told_at)'
            ' on api_keys to %I', archiver
        );
    end loop;
end
$$;
