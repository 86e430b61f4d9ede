-- What the attempts topic says was redriven, until the archive has the letter. A letter and the note of its redrive stand in two
-- topics, and the archive may read the note first.
create table redrive_notes (
    customer_id      registry_id not null,
    endpoint_id      registry_id not null,
    webhook_id       text not null,
    dead_lettered_at timestamptz not null,
    noted_at         timestamptz not null,
    primary key (webhook_id, customer_id, endpoint_id, dead_lettered_at)
);
call keep_customers_apart('redrive_notes');

-- By which a note finds its letter. While it is built, the archive, redrives and discards wait; pollers go on.
create index dead_letters_webhook_id on dead_letters (webhook_id);
