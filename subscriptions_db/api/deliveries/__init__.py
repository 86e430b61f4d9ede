"""Handlers of deliveries: attempts, dead letters, consumers, replays.

In: a checked call in a transaction. Out: an answer, or a problem. Runs in the API, on worker threads.
"""
