"""Routing: which subscriptions an event is due to.

In: an event and the registry at one revision. Out: the endpoints and subscriptions that match. Runs in the executors.
"""
