-- The statements of the archive, by name. subscriptions_db/postgres/sql.py loads them.

-- name: create_archive_day
select make_archive_day(%(kind)s, %(day)s) as made;

-- name: set_short_lock_timeout
set local lock_timeout = '1s';

-- name: drop_archive_days
select dropped from drop_archive_days(%(kind)s, %(before)s) as dropped;

-- name: archive_offsets
select topic, partition, next_offset from archive_offsets;

-- name: add_archive_offsets
insert into archive_offsets (topic, partition)
select * from unnest(%(topics)s::text[], %(partitions)s::integer[]) on conflict do nothing;

-- name: lock_archive_offsets
-- Another process that archives the same partitions waits here, and then skips the records that are archived by now.
select topic, partition, next_offset from archive_offsets
where (topic, partition) in (select * from unnest(%(topics)s::text[], %(partitions)s::integer[]))
order by topic, partition for update;

-- name: set_archive_offsets
update archive_offsets set next_offset = reached.next_offset
from unnest(%(topics)s::text[], %(partitions)s::integer[], %(next_offsets)s::bigint[]) as reached (topic, partition, next_offset)
where (archive_offsets.topic, archive_offsets.partition) = (reached.topic, reached.partition);

-- name: restart_archive_offset
update archive_offsets set next_offset = %(first)s, incarnation = incarnation + 1
where topic = %(topic)s and partition = %(partition)s and next_offset = %(next_offset)s;

-- name: skip_archive_offset
update archive_offsets set next_offset = %(first)s
where topic = %(topic)s and partition = %(partition)s and next_offset = %(next_offset)s;

-- name: lock_dead_letter_day
-- Serializes the transactions that write dead letters, so that readers see positions in order. The stored day never goes back.
update dead_letter_day set day = greatest(day, %(today)s) returning day;

-- name: insert_dead_letters
insert into dead_letters (
    position, archived_at, customer_id, endpoint_id, tenant_id, event_type, reason, webhook_id, dead_lettered_at, payload, letter,
    batch_webhook_id, letter_topic, letter_partition, letter_offset, letter_incarnation
)
select
    first_position_of(%(day)s) + nextval('dead_letter_positions'), %(archived_at)s, new.*,
    (select incarnation from archive_offsets o where (o.topic, o.partition) = (new.letter_topic, new.letter_partition))
from unnest(
    %(customer_id)s::text[], %(endpoint_id)s::text[], %(tenant_id)s::text[], %(event_type)s::text[], %(reason)s::text[],
    %(webhook_id)s::text[], %(dead_lettered_at)s::timestamptz[], %(payload)s::bytea[], %(letter)s::bytea[], %(batch_webhook_id)s::text[],
    %(letter_topic)s::text[], %(letter_partition)s::integer[], %(letter_offset)s::bigint[]
) as new (
    customer_id, endpoint_id, tenant_id, event_type, reason, webhook_id, dead_lettered_at, payload, letter,
    batch_webhook_id, letter_topic, letter_partition, letter_offset
);

-- name: insert_attempts
insert into attempts (
    started_at, customer_id, endpoint_id, webhook_id, event_id, event_type, tenant_id, subscription_id,
    events, attempt, duration_ms, status, error_class, detail, outcome, topic, partition, "offset", response_headers, response
)
select * from unnest(
    %(started_at)s::timestamptz[], %(customer_id)s::text[], %(endpoint_id)s::text[], %(webhook_id)s::text[],
    %(event_id)s::text[], %(event_type)s::text[], %(tenant_id)s::text[], %(subscription_id)s::text[], %(events)s::integer[],
    %(attempt)s::integer[], %(duration_ms)s::real[], %(status)s::integer[], %(error_class)s::text[], %(detail)s::text[],
    %(outcome)s::text[], %(topic)s::text[], %(partition)s::integer[], %(offset)s::bigint[], %(response_headers)s::jsonb[], %(response)s::text[]
);

-- name: add_statistics
-- Arrays are added element by element. The sum has the length of the longer array.
insert into delivery_statistics as kept (
    customer_id, endpoint_id, hour, delivered, dead_lettered, skipped, attempts, error_classes, durations, latencies
)
select customer_id, endpoint_id, hour, delivered, dead_lettered, skipped, attempts, error_classes, durations::integer[], latencies::integer[]
from unnest(
    %(customer_ids)s::text[], %(endpoint_ids)s::text[], %(hours)s::timestamptz[], %(delivered)s::bigint[], %(dead_lettered)s::bigint[],
    %(skipped)s::bigint[], %(attempts)s::bigint[], %(error_classes)s::jsonb[], %(durations)s::text[], %(latencies)s::text[]
) as new (
    customer_id, endpoint_id, hour, delivered, dead_lettered, skipped, attempts, error_classes, durations, latencies
)
on conflict (customer_id, endpoint_id, hour) do update set
    delivered = kept.delivered + excluded.delivered,
    dead_lettered = kept.dead_lettered + excluded.dead_lettered,
    skipped = kept.skipped + excluded.skipped,
    attempts = kept.attempts + excluded.attempts,
    error_classes = case when excluded.error_classes = '{}' then kept.error_classes else (
        select jsonb_object_agg(name, count) from (
            select name, sum(count::bigint) as count
            from (
                select * from jsonb_each_text(kept.error_classes) union all select * from jsonb_each_text(excluded.error_classes)
            ) as counted (name, count)
            group by name
        ) as summed
    ) end,
    durations = array(
        select coalesce(old, 0) + coalesce(more, 0)
        from unnest(kept.durations, excluded.durations) with ordinality as counted (old, more, number) order by number
    ),
    latencies = array(
        select coalesce(old, 0) + coalesce(more, 0)
        from unnest(kept.latencies, excluded.latencies) with ordinality as counted (old, more, number) order by number
    );

-- name: delete_old_statistics
delete from delivery_statistics where ctid = any (array(
    select ctid from delivery_statistics where hour < %(before)s order by hour limit %(most)s for update skip locked
));

-- name: statistics
-- The arrays are returned as one JSON text, which the client parses faster.
select hour, delivered, dead_lettered, skipped, attempts, json_build_array(error_classes, durations, latencies)::text as parts
from delivery_statistics
where customer_id = %(customer_id)s and endpoint_id = %(endpoint_id)s and hour >= %(since)s and hour < %(until)s
order by hour;

-- name: letters_after
-- The waiting dead letters that a search examines: at most `most`, the nearest first. So a search with a rare criterion costs
-- no more than a search without criteria. archived_dead_letters.py puts letters_after, letters_before, parked_after or
-- parked_before, as `looked_at`, before judged_letters, matching_letters and page_…. counts.py puts letters_after or
-- parked_after before judged_letters and number_of_letters.
select position, endpoint_id, event_type, tenant_id, reason, dead_lettered_at, true as is_waiting from dead_letters
where customer_id = %(customer_id)s and state = 'waiting' and position > %(place)s
order by position limit %(most)s

-- name: letters_before
select position, endpoint_id, event_type, tenant_id, reason, dead_lettered_at, true as is_waiting from dead_letters
where customer_id = %(customer_id)s and state = 'waiting' and position < %(place)s
order by position desc limit %(most)s

-- name: parked_after
-- The parked dead letters of a consumer that a search examines. `most` bounds the examined leases, including leases of dead letters
-- that are no longer in the state `waiting`.
-- `limit 1` makes Postgres look up each dead letter by the index: for a join, it could read all dead letters.
select parked.position, letter.endpoint_id, letter.event_type, letter.tenant_id, letter.reason, letter.dead_lettered_at,
       letter.position is not null as is_waiting
from (
    select position from dead_letter_leases
    where customer_id = %(customer_id)s and consumer = %(name)s and parked_at is not null and position > %(place)s
    order by position limit %(most)s
) as parked
left join lateral (
    select position, endpoint_id, event_type, tenant_id, reason, dead_lettered_at from dead_letters
    where customer_id = %(customer_id)s and state = 'waiting' and position = parked.position
    limit 1
) as letter on true
order by parked.position

-- name: parked_before
select parked.position, letter.endpoint_id, letter.event_type, letter.tenant_id, letter.reason, letter.dead_lettered_at,
       letter.position is not null as is_waiting
from (
    select position from dead_letter_leases
    where customer_id = %(customer_id)s and consumer = %(name)s and parked_at is not null and position < %(place)s
    order by position desc limit %(most)s
) as parked
left join lateral (
    select position, endpoint_id, event_type, tenant_id, reason, dead_lettered_at from dead_letters
    where customer_id = %(customer_id)s and state = 'waiting' and position = parked.position
    limit 1
) as letter on true
order by parked.position desc

-- name: judged_letters
-- The event's id is read from the record as text, because Postgres refuses JSON with an escaped NUL.
select position, (
    is_waiting
    and (%(endpoint_id)s::text is null or endpoint_id = %(endpoint_id)s)
    and (%(event_type)s::text is null or event_type = %(event_type)s)
    and (%(event_type_prefix)s::text is null or starts_with(event_type, %(event_type_prefix)s))
    and (%(tenant_id)s::text is null or tenant_id = %(tenant_id)s)
    and (%(reason)s::text is null or reason = %(reason)s)
    and (%(since)s::timestamptz is null or dead_lettered_at >= %(since)s)
    and (%(until)s::timestamptz is null or dead_lettered_at < %(until)s)
    and (%(url)s::text is null or endpoint_id in (
        select endpoint_id from endpoints where customer_id = %(customer_id)s and position(lower(%(url)s) in lower(url)) > 0
    ))
    and (%(text)s::text is null or exists (
        select from dead_letters as whole
        where whole.position = looked_at.position and position(lower(%(text)s) in lower(concat_ws(
            chr(10), whole.webhook_id, whole.event_type, substring(convert_from(whole.letter, 'UTF8') from '"event_id":"((?:[^"\\]|\\.)*)"')
        ))) > 0
    ))
) as is_match from looked_at

-- name: matching_letters
select position from judged where is_match limit %(limit)s

-- name: number_of_letters
select count(*) as looked_at, count(*) filter (where is_match) as matching from judged;

-- name: page_after
-- The matches, and the position up to which the page is complete. One statement gives one snapshot: between two statements a dead letter
-- could arrive that only the second sees.
select
    array(select position from matching order by position) as positions,
    case when (select count(*) from matching) < %(limit)s
        then (select array[count(*), max(position)] from looked_at) end as looked_at;

-- name: page_before
select
    array(select position from matching order by position desc) as positions,
    case when (select count(*) from matching) < %(limit)s
        then (select array[count(*), min(position)] from looked_at) end as looked_at;

-- name: dead_letters_at
select position, archived_at, state, state_since, customer_id, payload, letter from dead_letters
where position = any (%(positions)s) and position between %(first)s and %(last)s and customer_id = %(customer_id)s;

-- name: waiting_dead_letters_at
select position, archived_at, state, state_since, customer_id, payload, letter from dead_letters
where position = any (%(positions)s) and position between %(first)s and %(last)s and customer_id = %(customer_id)s and state = 'waiting'
order by position;

-- name: dead_letter_sizes
-- The size in an answer, where the payload is base64. Postgres knows the length of a value without reading it.
select position, octet_length(payload) / 3 * 4 + octet_length(letter) as size from dead_letters
where position = any (%(positions)s) and position between %(first)s and %(last)s and customer_id = %(customer_id)s;

-- name: mark_dead_letters
update dead_letters set state = %(state)s, state_since = %(now)s
where position = any (%(positions)s) and position between %(first)s and %(last)s and customer_id = %(customer_id)s and state = any (%(from_states)s)
returning position;

-- name: first_dead_letter_since
select min(position) as position from dead_letters
where customer_id = %(customer_id)s and state = 'waiting' and archived_at >= %(since)s
  and position >= first_position_of((%(since)s at time zone 'UTC')::date);

-- name: last_dead_letter
select max(position) as position from dead_letters where customer_id = %(customer_id)s and state = 'waiting';

-- name: redrive_requests
-- The oldest requests, up to a number of bytes, and at least one. A concurrent process takes other requests.
with asked as (
    select position, letter, payload from dead_letters where state = 'redriving' order by position limit %(limit)s for update skip locked
)
select * from (select *, sum(length(payload) + length(letter)) over (order by position) as bytes from asked) as summed
where bytes <= %(bytes)s or position = (select min(position) from asked)
order by position;

-- name: redrive_requests_in_turn
-- As redrive_requests, but the customers take turns. Every request is read, because no index has the customers of requests.
-- `limit 1` makes Postgres look up each dead letter by the index. For a join it would read the records of all requested dead letters.
with ranked as (
    select position, row_number() over (partition by customer_id order by position) as turn
    from dead_letters where state = 'redriving'
    order by turn, position limit %(limit)s
), asked as (
    select found.position, turn, letter, payload
    from ranked cross join lateral (
        select position, letter, payload from dead_letters
        where dead_letters.position = ranked.position and state = 'redriving'
        limit 1 for update skip locked
    ) as found
)
select * from (select *, sum(length(payload) + length(letter)) over (order by turn, position) as bytes from asked) as summed
where bytes <= %(bytes)s or position = (select position from asked order by turn, position limit 1)
order by position;

-- name: max_ages
select endpoint_id, customer_id, retry_max_age_s from endpoints
where endpoint_id = any (%(endpoint_ids)s) and retry_max_age_s is not null;

-- name: mark_redriven
-- The caller has locked these rows.
update dead_letters set state = 'redriven', state_since = %(now)s where position = any (%(positions)s);

-- name: put_redrive_notes
insert into redrive_notes (customer_id, endpoint_id, webhook_id, dead_lettered_at, topic, partition, "offset", noted_at)
select new.*, %(now)s from unnest(
    %(customer_id)s::text[], %(endpoint_id)s::text[], %(webhook_id)s::text[], %(dead_lettered_at)s::timestamptz[],
    %(topic)s::text[], %(partition)s::integer[], %(offset)s::bigint[]
) as new
on conflict do nothing;

-- name: redrive_notes_about
select customer_id, endpoint_id, webhook_id, dead_lettered_at, topic, partition, "offset" from redrive_notes
where webhook_id = any (%(webhook_ids)s);

-- name: dead_letters_with_notes
-- The dead letters that a note may apply to, each once: a join would return a dead letter again for each of thousands of notes.
-- The caller compares the place of the event, which only the letter has (letters_at).
select l.position, l.state, l.dead_lettered_at, l.customer_id, l.endpoint_id, l.webhook_id, octet_length(l.letter) as bytes
from dead_letters l
where l.webhook_id = any (%(webhook_ids)s) and (
    (l.state <> 'redriven' and l.dead_lettered_at <= (
        select max(n.dead_lettered_at) from redrive_notes n
        where (n.webhook_id, n.customer_id, n.endpoint_id) = (l.webhook_id, l.customer_id, l.endpoint_id)
    ))
    or exists (
        select from redrive_notes n
        where (n.webhook_id, n.customer_id, n.endpoint_id, n.dead_lettered_at)
            = (l.webhook_id, l.customer_id, l.endpoint_id, l.dead_lettered_at)
    )
)
order by l.position for update of l;

-- name: letters_at
select position, letter from dead_letters where position = any (%(positions)s) and position between %(first)s and %(last)s;

-- name: delete_settled_notes
delete from redrive_notes n using unnest(
    %(customer_id)s::text[], %(endpoint_id)s::text[], %(webhook_id)s::text[], %(dead_lettered_at)s::timestamptz[],
    %(topic)s::text[], %(partition)s::integer[], %(offset)s::bigint[]
) as done (customer_id, endpoint_id, webhook_id, dead_lettered_at, topic, partition, "offset")
where (n.webhook_id, n.customer_id, n.endpoint_id, n.dead_lettered_at, n.topic, n.partition, n."offset")
    = (done.webhook_id, done.customer_id, done.endpoint_id, done.dead_lettered_at, done.topic, done.partition, done."offset");

-- name: delete_settled_notes_without_place
-- A statement of its own, so that delete_settled_notes compares with `=`, by the index. Otherwise Postgres would compare all
-- pairs of notes.
delete from redrive_notes n using unnest(
    %(customer_id)s::text[], %(endpoint_id)s::text[], %(webhook_id)s::text[], %(dead_lettered_at)s::timestamptz[]
) as done (customer_id, endpoint_id, webhook_id, dead_lettered_at)
where (n.webhook_id, n.customer_id, n.endpoint_id, n.dead_lettered_at)
    = (done.webhook_id, done.customer_id, done.endpoint_id, done.dead_lettered_at)
  and n.topic is null;

-- name: delete_old_notes
delete from redrive_notes where noted_at < %(before)s;

-- name: put_consumer
insert into dead_letter_consumers (customer_id, name, endpoint_id, event_type, tenant_id, reason, read_until, max_receives)
values (%(customer_id)s, %(name)s, %(endpoint_id)s, %(type)s, %(tenant_id)s, %(reason)s, %(read_until)s, %(max_receives)s)
on conflict (customer_id, name) do nothing;

-- name: consumers
select name, endpoint_id, event_type, tenant_id, reason, read_until, max_receives, created_at,
       (
           select count(*) from dead_letter_leases l
           where (l.customer_id, l.consumer) = (c.customer_id, c.name) and l.until < 'infinity'
       ) as unacknowledged
from dead_letter_consumers c
where customer_id = %(customer_id)s and (%(name)s::text is null or name = %(name)s)
order by name;

-- name: consumer_counts
-- At most `most` dead letters that a consumer has not read, `most` with a lease that ended, and `most` parked ones are examined.
-- `limit 1` makes Postgres look up each dead letter by the index: without planner statistics, it would read all dead letters for a join.
select c.name, unread.matching as unread, unread.looked_at, held.leased, given_back.waiting as given_back,
       given_back.looked_at as given_back_looked_at, parked.waiting as parked, parked.looked_at as parked_looked_at
from dead_letter_consumers c
cross join lateral (
    select count(*) as looked_at,
           count(*) filter (
               where (c.endpoint_id is null or endpoint_id = c.endpoint_id)
                 and case
                     when c.event_type is null then true
                     when c.event_type like '%%*' then starts_with(event_type, left(c.event_type, -1))
                     else event_type = c.event_type
                 end
                 and (c.tenant_id is null or tenant_id = c.tenant_id)
                 and (c.reason is null or reason = c.reason)
           ) as matching
    from (
        select endpoint_id, event_type, tenant_id, reason from dead_letters
        where customer_id = %(customer_id)s and state = 'waiting' and position > c.read_until
        order by position limit %(most)s
    ) as looked_at
) as unread
cross join lateral (
    select count(*) as leased from dead_letter_leases
    where customer_id = %(customer_id)s and consumer = c.name and token is not null and until > %(now)s and until < 'infinity'
) as held
cross join lateral (
    select count(*) as looked_at, count(letter.position) as waiting
    from (
        select position from dead_letter_leases
        where customer_id = %(customer_id)s and consumer = c.name and until < 'infinity' and (token is null or until <= %(now)s)
        order by position limit %(most)s
    ) as looked_at
    left join lateral (
        select position from dead_letters
        where customer_id = %(customer_id)s and state = 'waiting' and position = looked_at.position
        limit 1
    ) as letter on true
) as given_back
cross join lateral (
    select count(*) as looked_at, count(letter.position) as waiting
    from (
        select position from dead_letter_leases
        where customer_id = %(customer_id)s and consumer = c.name and parked_at is not null
        order by position limit %(most)s
    ) as looked_at
    left join lateral (
        select position from dead_letters
        where customer_id = %(customer_id)s and state = 'waiting' and position = looked_at.position
        limit 1
    ) as letter on true
) as parked
where c.customer_id = %(customer_id)s and c.name = any (%(names)s);

-- name: set_max_receives
update dead_letter_consumers set max_receives = %(max_receives)s where customer_id = %(customer_id)s and name = %(name)s;

-- name: delete_consumer
delete from dead_letter_consumers where customer_id = %(customer_id)s and name = %(name)s;

-- name: lock_consumer
-- Serializes the pollers of one consumer.
select endpoint_id, event_type, tenant_id, reason, read_until, max_receives from dead_letter_consumers
where customer_id = %(customer_id)s and name = %(name)s for update;

-- name: expired_leases
select position, times from dead_letter_leases
where customer_id = %(customer_id)s and consumer = %(name)s and until <= %(now)s
order by until limit %(limit)s;

-- name: park
-- The caller has locked the consumer. A late ack by the last receipt handle still counts.
update dead_letter_leases set parked_at = %(now)s, until = 'infinity'
where customer_id = %(customer_id)s and consumer = %(name)s and position = any (%(positions)s::bigint[]) and until <= %(now)s;

-- name: parked_leases_at
select position, times, parked_at from dead_letter_leases
where customer_id = %(customer_id)s and consumer = %(name)s and parked_at is not null and position = any (%(positions)s::bigint[]);

-- name: parked_positions
select position from dead_letter_leases
where customer_id = %(customer_id)s and consumer = %(name)s and parked_at is not null
  and (%(positions)s::bigint[] is null or position = any (%(positions)s))
order by position limit %(limit)s;

-- name: unpark
-- The caller has locked the consumer.
update dead_letter_leases set parked_at = null, token = null, until = %(now)s, times = 0
where customer_id = %(customer_id)s and consumer = %(name)s and parked_at is not null and position = any (%(positions)s::bigint[]);

-- name: unacknowledged
select count(*) as unacknowledged from dead_letter_leases
where customer_id = %(customer_id)s and consumer = %(name)s and until < 'infinity';

-- name: renew_expired_leases
-- Also returns the number of the consumer's leases, including the renewed ones. Leases of parked dead letters do not count.
with again as (
    update dead_letter_leases
    set token = %(token)s, until = %(until)s, leased_at = %(now)s, times = times + 1, parked_at = null
    where customer_id = %(customer_id)s and consumer = %(name)s and position = any (%(positions)s::bigint[]) and until <= %(now)s
    returning position, times
)
select
    coalesce(array_agg(position), '{}') as positions, coalesce(array_agg(times), '{}') as times,
    (
        select count(*) from dead_letter_leases
        where customer_id = %(customer_id)s and consumer = %(name)s and until < 'infinity'
    ) as unacknowledged
from again;

-- name: put_leases
with passed as (
    update dead_letter_consumers set read_until = %(read_until)s where customer_id = %(customer_id)s and name = %(name)s
)
insert into dead_letter_leases (customer_id, consumer, position, token, until, leased_at, times)
select %(customer_id)s, %(name)s, unnest(%(positions)s::bigint[]), %(token)s, %(until)s, %(now)s, 1;

-- name: set_read_until
update dead_letter_consumers set read_until = %(read_until)s where customer_id = %(customer_id)s and name = %(name)s;

-- name: delete_leases
delete from dead_letter_leases
where customer_id = %(customer_id)s and consumer = %(name)s and position = any (%(positions)s);

-- name: end_leases
-- Parked dead letters up to the new place stay parked, because the consumer does not read them again.
delete from dead_letter_leases
where customer_id = %(customer_id)s and consumer = %(name)s and (parked_at is null or position > %(read_until)s);

-- name: end_receipts_of_parked
update dead_letter_leases set token = null
where customer_id = %(customer_id)s and consumer = %(name)s and parked_at is not null and token is not null;

-- name: asked_receipts
-- The receipt handles of a request. receipts.py puts this statement before `ack`, `nack` or `extend`, and receipt_results last.
select number, position, token
from unnest(%(positions)s::bigint[], %(tokens)s::uuid[]) with ordinality as asked (position, token, number)

-- name: ack
-- An expired lease that no other poller has taken still counts.
delete from dead_letter_leases
where customer_id = %(customer_id)s and consumer = %(name)s and (position, token) in (select position, token from asked)
returning position, token, null::timestamptz as until

-- name: nack
update dead_letter_leases as lease set token = null, until = %(until)s
from (select distinct position, token from asked) as asked
where lease.customer_id = %(customer_id)s and lease.consumer = %(name)s
  and (lease.position, lease.token) = (asked.position, asked.token) and lease.parked_at is null
returning asked.position, asked.token, null::timestamptz as until

-- name: extend
update dead_letter_leases as lease set until = least(%(until)s, leased_at + make_interval(secs => %(max_lease_s)s))
from (select distinct position, token from asked) as asked
where lease.customer_id = %(customer_id)s and lease.consumer = %(name)s
  and (lease.position, lease.token) = (asked.position, asked.token) and lease.parked_at is null
  and lease.leased_at + make_interval(secs => %(max_lease_s)s) > %(now)s
returning lease.position, lease.token, lease.until

-- name: receipt_results
-- One row for each receipt handle, in order. `holder` is the token of the lease before the statement. `now` is null except for `extend`.
select settled.position is not null as is_settled, settled.until, lease.token as holder, lease.parked_at is not null as is_parked,
       lease.leased_at + make_interval(secs => %(max_lease_s)s) <= %(now)s::timestamptz as is_too_long
from asked
left join settled on (settled.position, settled.token) = (asked.position, asked.token)
left join dead_letter_leases as lease
    on lease.customer_id = %(customer_id)s and lease.consumer = %(name)s and lease.position = asked.position
order by number;

-- name: records_before
-- The newest records of a customer before a place. A search of attempts or deliveries examines these: at most `most`, the nearest first.
-- records.py puts this statement or records_after, as `looked_at`, before last_record_…. With `matching_…`, as `matching`, this
-- statement comes before nearest_… or number_of_matches.
select * from attempts
where customer_id = %(customer_id)s
  and (%(endpoint_id)s::text is null or endpoint_id = %(endpoint_id)s)
  and (%(webhook_id)s::text is null or webhook_id = %(webhook_id)s)
  and (started_at, position) < (%(place_at)s, %(place)s) and started_at >= %(since)s and started_at < %(until)s
order by started_at desc, position desc limit %(most)s

-- name: records_after
select * from attempts
where customer_id = %(customer_id)s
  and (%(endpoint_id)s::text is null or endpoint_id = %(endpoint_id)s)
  and (%(webhook_id)s::text is null or webhook_id = %(webhook_id)s)
  and (started_at, position) > (%(place_at)s, %(place)s) and started_at >= %(since)s and started_at < %(until)s
order by started_at, position limit %(most)s

-- name: nearest_before
select * from matching order by started_at desc, position desc limit %(limit)s

-- name: nearest_after
select * from matching order by started_at, position limit %(limit)s

-- name: last_record_before
select started_at, position from looked_at order by started_at desc, position desc limit 1 offset %(most)s - 1

-- name: last_record_after
select started_at, position from looked_at order by started_at, position limit 1 offset %(most)s - 1

-- name: matching_attempts
select started_at, position, customer_id, endpoint_id, webhook_id, event_id, event_type, tenant_id, subscription_id, events,
       attempt, duration_ms, status, error_class, detail, topic, partition, "offset", response_headers, response
from looked_at
where outcome is null
  and (%(event_type)s::text is null or event_type = %(event_type)s)
  and (%(event_type_prefix)s::text is null or starts_with(event_type, %(event_type_prefix)s))
  and (%(tenant_id)s::text is null or tenant_id = %(tenant_id)s)
  and (%(status)s::integer is null or status = %(status)s)
  and (%(error_class)s::text is null or error_class = %(error_class)s)
  and (%(is_accepted)s::boolean is null or (error_class is null) = %(is_accepted)s)
  and (%(url)s::text is null or endpoint_id in (
      select endpoint_id from endpoints where customer_id = %(customer_id)s and position(lower(%(url)s) in lower(url)) > 0
  ))
  and (%(text)s::text is null or position(lower(%(text)s) in lower(concat_ws(chr(10), event_id, webhook_id, detail, response))) > 0)

-- name: attempt_at
select customer_id, endpoint_id, webhook_id, event_id, event_type, tenant_id, subscription_id, events,
       attempt, duration_ms, status, error_class, detail, topic, partition, "offset", response_headers, response, started_at
from attempts
where customer_id = %(customer_id)s and started_at = %(started_at)s and position = %(position)s and outcome is null;

-- name: matching_deliveries
-- A delivery is sorted by its first record, and its newest record decides the status. A `postponed` record counts least, whatever its time,
-- because a background attempt began before it. A reused `webhook-id` joins several deliveries, so the records of one id are limited too.
select first.started_at, first.position, first.endpoint_id, first.webhook_id, first.event_id, first.event_type,
       first.tenant_id, first.subscription_id, first.events, newest.at as newest_at, verdict.status, verdict.reason, newest.attempts,
       coalesce(letter.count, 0) as dead_letters, letter.position as dead_letter, letter.state as dead_letter_state
from looked_at as first
cross join lateral (
    select started_at as at, outcome, error_class, count(*) filter (where outcome is null) over () as attempts
    from (
        select started_at, position, outcome, error_class from attempts
        where customer_id = %(customer_id)s and webhook_id = first.webhook_id
        order by started_at desc, position desc limit %(most_of_one)s
    ) as latest
    order by outcome is not distinct from 'postponed', started_at desc, position desc limit 1
) as newest
left join lateral (
    -- The dead letters of the newest attempt; earlier ones were retried since. An accepted batch can have dead letters too.
    select position, state, reason, count(*) over () as count
    from (
        -- Two selects: with `or`, Postgres would scan in the order of positions and read days of dead letters.
        select * from (
            select position, state, reason, customer_id, dead_lettered_at from dead_letters
            where webhook_id = first.webhook_id
            union all
            select position, state, reason, customer_id, dead_lettered_at from dead_letters
            where batch_webhook_id = first.webhook_id
        ) as named
        where customer_id = %(customer_id)s
          -- One day earlier, because the clock that created the partitions is not the clock of the attempt.
          and position >= first_position_of((newest.at at time zone 'UTC')::date - 1)
          and (dead_lettered_at >= newest.at or newest.outcome is not distinct from 'dead_lettered')
          and (newest.error_class is not null or first.subscription_id is null)
        limit %(most_letters)s
    ) as letters
    order by position desc limit 1
) as letter on true
cross join lateral (
    select case
            when newest.outcome = 'postponed' then 'waiting'
            when newest.outcome is not null then newest.outcome
            when newest.error_class is null then 'delivered'
            when letter.position is not null then 'dead_lettered'
            else 'waiting'
        end as status,
        case when newest.error_class is not null then coalesce(letter.reason, newest.error_class) end as reason
) as verdict
where not exists (
        select from attempts as earlier
        where earlier.customer_id = %(customer_id)s and earlier.webhook_id = first.webhook_id
          and earlier.started_at <= first.started_at
          and (earlier.started_at, earlier.position) < (first.started_at, first.position)
  )
  and (%(event_type)s::text is null or event_type = %(event_type)s)
  and (%(event_type_prefix)s::text is null or starts_with(event_type, %(event_type_prefix)s))
  and (%(tenant_id)s::text is null or tenant_id = %(tenant_id)s)
  and (%(status)s::text is null or verdict.status = %(status)s)
  and (%(reason)s::text is null or verdict.reason = %(reason)s)
  and (%(url)s::text is null or first.endpoint_id in (
      select endpoint_id from endpoints where customer_id = %(customer_id)s and position(lower(%(url)s) in lower(url)) > 0
  ))
  and (%(text)s::text is null or position(lower(%(text)s) in lower(concat_ws(
      chr(10), first.event_id, first.webhook_id, first.event_type, first.subscription_id
  ))) > 0)

-- name: number_of_matches
select count(*) as count from matching;

-- name: first_record_of_delivery
select started_at, position from attempts
where customer_id = %(customer_id)s and webhook_id = %(webhook_id)s
order by started_at, position limit 1;

-- name: lock_endpoint_health
-- Serializes the writers of endpoint health: two writers that find no row of an endpoint would overwrite each other.
select pg_advisory_xact_lock(hashtext('fanout.endpoint_conditions'));

-- name: endpoint_health
-- The stored health, and the customer of the registered endpoint. Each of the two may be missing.
select endpoint_id, c.customer_id, c.condition, e.customer_id as owner_id
from unnest(%(endpoint_ids)s::text[]) as asked (endpoint_id)
left join endpoint_conditions c using (endpoint_id) left join endpoints e using (endpoint_id);

-- name: put_endpoint_health
insert into endpoint_conditions (endpoint_id, customer_id, condition, wake_at)
select * from unnest(
    %(endpoint_ids)s::text[], %(customer_ids)s::text[], %(conditions)s::jsonb[], %(wake_at)s::timestamptz[]
)
on conflict (endpoint_id) do update
set customer_id = excluded.customer_id, condition = excluded.condition, wake_at = excluded.wake_at;

-- name: recently_disabled_endpoints
-- Endpoints whose `disabled` event is not recorded yet, and became due after `since`. The event is due at once, or quiet_s seconds
-- after the last `disabled` event of the endpoint.
select endpoint_id, customer_id, e.disabled_at, e.disabled_reason
from endpoints e left join endpoint_conditions c using (endpoint_id, customer_id)
where e.status = 'disabled'
  and greatest(e.disabled_at, (c.condition ->> 'disabled_told_at')::timestamptz + %(quiet_s)s * interval '1 second') > %(since)s
  and (c.condition ->> 'disabled_at')::timestamptz is distinct from e.disabled_at
order by e.disabled_at;

-- name: endpoint_health_due
select endpoint_id, customer_id from endpoint_conditions where wake_at <= %(now)s order by wake_at;

-- name: delete_orphaned_endpoint_health
delete from endpoint_conditions c
where not exists (select from endpoints e where e.endpoint_id = c.endpoint_id and e.customer_id = c.customer_id);

-- name: put_operational_events
-- The column `endpoint_id` has the id of the event's subject: an endpoint, an API key, or the customer or tenant of a quota.
-- The column `customer_id` has '' if the event is for operators only.
insert into operational_events (event_id, kind, endpoint_id, customer_id, at, data)
select * from unnest(
    %(event_ids)s::text[], %(kinds)s::text[], %(subject_ids)s::text[], %(customer_ids)s::text[], %(at)s::timestamptz[], %(data)s::json[]
);

-- name: operational_events
select number, event_id, kind, endpoint_id as subject_id, nullif(customer_id, '') as customer_id, at, data from operational_events
order by number limit %(limit)s for update skip locked;

-- name: delete_operational_events
delete from operational_events where number = any (%(numbers)s);

-- name: take_expiring_api_keys
-- Marks and returns each key once: of two processes, the second waits for the first, and then finds the key marked.
update api_keys set expiry_told_at = %(now)s
where customer_id is not null and revoked_at is null and expiry_told_at is null
  and expires_at > %(now)s and expires_at <= %(until)s
returning key_id, customer_id, scope, name, expires_at;

-- name: bound_statements
-- Lowers the time limit of statements until the end of the transaction. 0 means no limit.
select set_config('statement_timeout', least(nullif(setting::bigint, 0), %(most_ms)s)::text, true)
from pg_settings where name = 'statement_timeout';

-- name: lock_reached_quotas
-- Serializes the writers of reached quotas: two writers that find no row of a subject would make two events.
select pg_advisory_xact_lock(hashtext('fanout.reached_quotas'));

-- name: known_quotas
select quota, subject_id, customer_id, most, reached_at, reported_at from reached_quotas;

-- name: quotas_reached_now
-- A quota of 0 forbids everything and never counts as reached. The dead letters of a customer are counted up to the quota.
-- Unregistered tenants get no event, because anybody with a publisher's key can invent their ids.
with bounds as (
    select customer_id, coalesce(max_endpoints, %(endpoints)s) as endpoints, coalesce(max_subscriptions, %(subscriptions)s) as subscriptions,
           coalesce(max_dead_letters, nullif(%(dead_letters)s, 0)) as dead_letters
    from customers left join customer_quotas using (customer_id)
)
select 'endpoints' as quota, customer_id as subject_id, customer_id, bounds.endpoints::bigint as most
from bounds join (select customer_id, count(*) as rows from endpoints group by customer_id) as counted using (customer_id)
where rows >= bounds.endpoints and bounds.endpoints > 0
union all
select 'subscriptions', customer_id, customer_id, bounds.subscriptions
from bounds join (select customer_id, count(*) as rows from subscriptions group by customer_id) as counted using (customer_id)
where rows >= bounds.subscriptions and bounds.subscriptions > 0
union all
select 'consumers', customer_id, customer_id, %(consumers)s
from dead_letter_consumers group by customer_id having count(*) >= %(consumers)s
union all
select 'dead_letters', customer_id, customer_id, dead_letters
from bounds
where dead_letters is not null and exists (
    select from dead_letters as letter where letter.customer_id = bounds.customer_id and state = 'waiting'
    order by position offset bounds.dead_letters - 1 limit 1
)
union all
select 'events_per_day', tenant_id, null, coalesce(max_events_per_day, %(events_per_day)s)
from published_events join tenants using (tenant_id) left join tenant_quotas using (tenant_id)
where day = %(today)s and %(events_per_day)s > 0 and events >= coalesce(max_events_per_day, %(events_per_day)s);

-- name: put_reached_quotas
insert into reached_quotas (quota, subject_id, customer_id, most, reached_at, reported_at)
select * from unnest(
    %(quota)s::text[], %(subject_id)s::text[], %(customer_id)s::text[], %(most)s::bigint[], %(reached_at)s::timestamptz[],
    %(reported_at)s::timestamptz[]
)
on conflict (quota, subject_id) do update
set most = excluded.most, reached_at = excluded.reached_at, reported_at = excluded.reported_at;

-- name: delete_reached_quotas
delete from reached_quotas where (quota, subject_id) in (select * from unnest(%(quotas)s::text[], %(subject_ids)s::text[]));
