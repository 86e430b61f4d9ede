"""The retry schedule of a shard.

In: retry messages and the shard's state. Out: leases of retry entries to attempt now, and the new state. Pure. Runs in the
executors. A shard is one key of Spark's state: it has the retry entries of a fixed part of all endpoints.
"""
