-- The time of a lease's poll: a poller can extend its lease, up to twelve hours after that. A lease from before this migration counts
-- from the migration on; one that the version before renews, from its first poll. The version before works on.

alter table dead_letter_leases add column leased_at timestamptz not null default now();
