-- Headers of the responses to failed attempts, in the archive. The version before works on, and archives none.

-- By name, only those of delivery/webhooks/policy/response_headers.py. Null: none were kept.
alter table attempts add column response_headers jsonb;
