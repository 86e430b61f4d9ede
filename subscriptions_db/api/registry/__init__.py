"""Handle API requests about the registry: customers, tenants, endpoints, subscriptions, the event catalogue, and the audit log.

In: a checked call in a transaction. Out: an answer, a problem, or a request that the event loop sends after the transaction.
Runs in the API: handlers on worker threads, the sender of test events on the event loop.
"""
