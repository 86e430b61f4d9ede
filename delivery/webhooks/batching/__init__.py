"""Batches: which events of an endpoint leave together, and when.

In: segments of events, the batch policy of each endpoint, and `now`. Out: batches, and the state of a shard. Pure. Runs in
the executors.
"""
