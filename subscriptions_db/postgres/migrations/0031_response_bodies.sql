-- The beginning of the body of the responses to failed attempts, in the archive. The version before works on, and archives none.

-- Without credentials, as delivery/webhooks/policy/response_body.py has it. Null: none was kept.
alter table attempts add column response text;
