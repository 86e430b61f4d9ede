-- The statements of replays, by name. subscriptions_db/postgres/sql.py loads them.

-- name: put_replay
insert into replays (
    replay_id, customer_id, endpoint_id, since, until, event_types, webhook_id, subscription_id, topic, partition, "offset"
) values (
    %(replay_id)s, %(customer_id)s, %(endpoint_id)s, %(since)s, %(until)s, %(event_types)s,
    %(webhook_id)s, %(subscription_id)s, %(topic)s, %(partition)s, %(offset)s
) on conflict (endpoint_id, coalesce(webhook_id, '')) where state in ('waiting', 'running') do nothing
returning *;

-- name: room_for_replays
-- `dead_letters` is the customer's quota of dead letters if `fanout archive` found it reached, and it is reached now. Dead letters are counted
-- only in this case, up to the quota.
select count(*) as unfinished, (
    select coalesce(max_dead_letters, most)
    from reached_quotas left join customer_quotas on customer_quotas.customer_id = subject_id
    where quota = 'dead_letters' and subject_id = %(customer_id)s and reached_at is not null and exists (
        select from dead_letters where dead_letters.customer_id = %(customer_id)s and state = 'waiting'
        order by position offset coalesce(max_dead_letters, most) - 1 limit 1
    )
) as dead_letters
from replays where customer_id = %(customer_id)s and state in ('waiting', 'running');

-- name: replay
select * from replays where customer_id = %(customer_id)s and replay_id = %(replay_id)s;

-- name: matching_replays
-- requests.py puts this statement, as `matching`, before newest_before, oldest_after or number_of_replays.
select * from replays
where customer_id = %(customer_id)s
  and (%(endpoint_id)s::text is null or endpoint_id = %(endpoint_id)s)
  and (%(state)s::text is null or state = %(state)s)
  and (%(since)s::timestamptz is null or created_at >= %(since)s)
  and (%(until)s::timestamptz is null or created_at < %(until)s)

-- name: newest_before
select * from matching where number < %(place)s order by number desc limit %(limit)s;

-- name: oldest_after
select * from matching where number > %(place)s order by number limit %(limit)s;

-- name: number_of_replays
select count(*) as count from matching;

-- name: any_replay
select * from replays where replay_id = %(replay_id)s;

-- name: newest_replays
-- Reads the replays of all customers. A statement that serves one customer as well as all would get a plan without the index by customer.
select * from replays
where (%(endpoint_id)s::text is null or endpoint_id = %(endpoint_id)s)
order by number desc limit %(limit)s;

-- name: cancel_replay
update replays set state = 'cancelled', state_since = %(now)s
where customer_id = %(customer_id)s and replay_id = %(replay_id)s and state in ('waiting', 'running');

-- name: resumable_replays
-- A running replay of a time range waits while its endpoint is paused or disabled. If the endpoint was deleted, or has another customer now,
-- the replay is returned, and fails.
select * from replays
where state in ('waiting', 'running') and handed_over - delivered - dead_lettered - skipped < %(max_pending)s
  and not (state = 'running' and webhook_id is null and exists (
      select from endpoints
      where (endpoints.endpoint_id, endpoints.customer_id) = (replays.endpoint_id, replays.customer_id) and status <> 'active'
  ))
order by number;

-- name: lock_replay
-- Returns no row if another process has locked the replay: that process works on it.
select * from replays where replay_id = %(replay_id)s and state in ('waiting', 'running') for update skip locked;

-- name: put_replay_partitions
insert into replay_places (replay_id, topic, partition, next_offset, end_offset)
select %(replay_id)s, place.* from unnest(
    %(topic)s::text[], %(partition)s::integer[], %(next_offset)s::bigint[], %(end_offset)s::bigint[]
) as place;

-- name: begin_replay
update replays set state = 'running', state_since = %(now)s, is_whole = %(is_whole)s where replay_id = %(replay_id)s;

-- name: next_replay_partition
select topic, partition, next_offset, end_offset from replay_places
where replay_id = %(replay_id)s and next_offset < end_offset
order by topic, partition limit 1;

-- name: advance_replay_partition
update replay_places set next_offset = %(next_offset)s
where replay_id = %(replay_id)s and topic = %(topic)s and partition = %(partition)s;

-- name: add_replayed_records
update replays set records = records + %(records)s, handed_over = handed_over + %(handed_over)s, is_whole = is_whole and not %(is_lost)s
where replay_id = %(replay_id)s;

-- name: end_replay
update replays set state = %(state)s, reason = %(reason)s, state_since = %(now)s where replay_id = %(replay_id)s;

-- name: delete_replay_partitions
delete from replay_places where replay_id = %(replay_id)s;

-- name: add_replay_outcomes
update replays set
    delivered = replays.delivered + ended.delivered,
    dead_lettered = replays.dead_lettered + ended.dead_lettered,
    skipped = replays.skipped + ended.skipped
from unnest(%(replay_id)s::text[], %(delivered)s::bigint[], %(dead_lettered)s::bigint[], %(skipped)s::bigint[])
    as ended (replay_id, delivered, dead_lettered, skipped)
where replays.replay_id = ended.replay_id;

-- name: delete_old_replays
delete from replays where state not in ('waiting', 'running') and state_since < %(before)s;
