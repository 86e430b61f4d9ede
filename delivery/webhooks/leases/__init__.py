"""Process one lease of the retry lane: decide about each entry, attempt the entries, and build the lease's report.

A lease is a set of retry entries that a shard gives to a worker for a limited time. In: a lease, its endpoint and subscriptions
by the registry, the responses. Out: results and the report of the lease. Runs in the executors, on the event loop of a worker.
`lease_triage`, `lease_delivery`, `lease_report` and `endpoint_observations` are pure.
"""
