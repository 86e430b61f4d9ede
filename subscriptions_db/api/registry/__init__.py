"""Handlers of the registry: customers, tenants, endpoints, subscriptions.

In: a checked call in a transaction. Out: an answer, or a problem. Runs in the API, on worker threads.
"""
