-- By which the letters of a batch that was given up are found. While it is built, the archive waits; who reads goes on.
create index dead_letters_batch_webhook_id on dead_letters (batch_webhook_id) where batch_webhook_id is not null;
