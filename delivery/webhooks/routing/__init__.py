"""Routing: find the subscriptions to which an event is due.

In: an event and the registry at one revision. Out: the endpoints and subscriptions that match. Runs in the executors.
"""
