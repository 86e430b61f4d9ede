-- Deliveries to be searched: what was never attempted has a row beside the attempts, and what belongs together is found by its
-- webhook-id. docs/adr/0017-archive.md says why it is made so. The version before goes on with it, and archives attempts alone; what
-- is not attempted it would show as an attempt 0 that failed. The indexes are migrations of their own, 0015 and 0016: these columns are
-- made at once, and in the order in which the archive writes, or the two would wait for each other.

-- A batch that is given up leaves a letter for each of its events. Null: sent alone, or archived by an older version.
alter table dead_letters add column batch_webhook_id text;

-- Null: an attempt. Else how the delivery ended without one, or that it waits; `attempt` is 0, and `error_class` says why.
alter table attempts add column outcome text check (outcome in ('skipped', 'postponed', 'dead_lettered'));
