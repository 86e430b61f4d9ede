-- `fanout archive` deletes answers to an `Idempotency-Key` after a day. The version before works on: its requests delete them.

-- Every role that archives may delete them, as in 0032. Such a role does not read the answers. `ctid` and the right to update are for the
-- locks of the rows.
do $$
declare
    archiver name;
begin
    for archiver in
        select distinct grantee.rolname from pg_class, aclexplode(relacl) as acl join pg_roles as grantee on grantee.oid = acl.grantee
        where pg_class.oid = 'attempts'::regclass and acl.privilege_type = 'INSERT' and acl.grantee <> relowner
    loop
        execute format('grant select (ctid, created_at), update (created_at), delete on idempotency_keys to %I', archiver);
    end loop;
end
$$;
