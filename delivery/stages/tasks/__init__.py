"""The tasks of the lanes, as functions that Spark calls for each partition.

In: Arrow batches of a partition. Out: rows for the result topics, and counters for the driver. Runs in the executors.
"""
