"""One lease of the retry lane: triage of its entries, their attempts, and its report.

In: a lease of a shard, the registry's destination, the responses. Out: results and the report of the lease. Runs in the
executors, on the event loop of a worker. `lease_triage`, `lease_delivery`, `lease_report` and `endpoint_observations` are pure.
"""
