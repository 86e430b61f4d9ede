"""Process the leases that a worker of the retry lane gets: decide about each entry, attempt the entries, and build the reports.

A lease is a set of retry entries that a shard gives to a worker for a limited time. In: leases, the registry's rows of
their endpoints and subscriptions, and responses. Out: results, and a report for each lease, except leases of entries that are
given up. Runs in the executors, on the event loop of a worker.

`lease_triage`, `lease_delivery`, `lease_report` and `endpoint_observations` are pure.
"""
