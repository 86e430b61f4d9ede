"""The tasks of the lanes.

In: Arrow batches of a partition. Out: rows for the result topics, and counters for the driver. Runs in the executors.
"""
