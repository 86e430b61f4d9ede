"""Collect an endpoint's events into batches, and decide when each batch is sent.

In: segments of events with the bounds of each endpoint's batches, and `now`. Out: batches, and the state of a shard (one key of
Spark's state). Pure. Runs in the executors. The API, the archive and the commands use the module `segment` for packed events.
"""
