"""Attempt the deliveries of one Spark task in a fair order, so that no endpoint delays other endpoints.

In: deliveries. Out: their outcomes, and observations of their endpoints. Runs in the executors, on the event loop of a worker.
"""
