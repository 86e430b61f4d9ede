-- The limits of 0022 in the archive. A migration of its own, in the order in which the archive writes, or the two would wait for each other.

do $$
declare
    kind text;
    day  regclass;
begin
    foreach kind in array array['dead_letters', 'attempts'] loop
        call keep_endpoints_apart(kind::regclass);
        -- A day that was made since 0022 has the policy already.
        for day in
            select inhrelid from pg_inherits where inhparent = kind::regclass
                and not exists (select from pg_policy where polrelid = inhrelid and polname = 'own_endpoints')
            order by inhrelid
        loop
            call keep_endpoints_apart(day);
        end loop;
    end loop;
end
$$;

-- A consumer of all endpoints is not a limited key's, because another key's polls move it on.
call keep_endpoints_apart('dead_letter_consumers');
call keep_endpoints_apart('dead_letter_leases', 'consumer in (select name from dead_letter_consumers)');
