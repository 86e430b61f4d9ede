"""Batches: which events of an endpoint leave together, and when.

In: segments of events with the bounds of each endpoint's batches, and `now`. Out: batches, and the state of a shard. Pure. Runs
in the executors. The API, the archive and the commands pack and unpack events by `segment` too.
"""
