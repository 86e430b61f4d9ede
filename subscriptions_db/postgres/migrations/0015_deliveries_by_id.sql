-- In the order of time, so that what is the first and the newest of a delivery is found however many there are: a producer that gives
-- all its events one id makes them one delivery. While it is built, the archive waits; who reads goes on.
create index attempts_webhook_id on attempts (webhook_id, started_at);
