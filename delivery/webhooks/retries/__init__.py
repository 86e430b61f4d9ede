"""The retry schedule of a shard.

In: retry messages and the shard's state. Out: leases of entries to attempt now, and the new state. Pure. Runs in the executors.
"""
