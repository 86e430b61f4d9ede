-- Deliveries to be searched: what was never attempted has a row beside the attempts, and what belongs together is found by its
-- webhook-id. docs/adr/0017-archive.md says why it is made so. The version before goes on with it, and archives attempts alone; what
-- is not attempted it would show as an attempt 0 that failed.

-- Null: an attempt. Else how the delivery ended without one, or that it waits; `attempt` is 0, and `error_class` says why.
alter table attempts add column outcome text check (outcome in ('skipped', 'postponed', 'dead_lettered'));

-- In the order of time, so that what is the first and the newest of a delivery is found however many there are: a producer that gives
-- all its events one id makes them one delivery. While it is built, the archive waits.
create index attempts_webhook_id on attempts (webhook_id, started_at);

-- A batch that is given up leaves a letter for each of its events. Null: sent alone, or archived by an older version.
alter table dead_letters add column batch_webhook_id text;
create index dead_letters_batch_webhook_id on dead_letters (batch_webhook_id) where batch_webhook_id is not null;
