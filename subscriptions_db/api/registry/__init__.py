"""Handle API requests about the registry: customers, tenants, endpoints, subscriptions, the event catalogue, and the audit log.

In: a checked call in a transaction. Out: an answer, a problem, a request that the event loop sends after the transaction, or a
SnapshotRequest, which snapshot_feed.py answers. Runs in the API: handlers on worker threads, the sender of test events and of
requests for a receiver's permission on the event loop.
"""
