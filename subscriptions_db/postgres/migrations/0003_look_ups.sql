-- For executors that look up the registry themselves (snapshot.source = "lookup"): a tenant's subscriptions, and those of an
-- event type that are about everything.

create index scopes_by_tenant on scopes (tenant_id, subscription_id) where effect = 'include';
create index subscriptions_about_everything on subscriptions (event_type) where scope = 'everything';
