-- The place in Kafka of the event of a redriven dead letter: events with one webhook-id may be different records, where a producer uses an
-- id again. The version before works on, and writes notes without a place.

-- Null: the version before wrote the note, which applies to each dead letter with its webhook-id, customer and endpoint.
alter table redrive_notes add column topic text, add column partition integer, add column "offset" bigint;

-- Dead letters with one webhook-id may have one time.
alter table redrive_notes drop constraint redrive_notes_pkey;
alter table redrive_notes add unique nulls not distinct (webhook_id, customer_id, endpoint_id, dead_lettered_at, topic, partition, "offset");
