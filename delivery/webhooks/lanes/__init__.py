"""The lanes without Spark, and the worker process that runs them.

In: records, batches or leases of a task. Out: results. Runs in the executors.
"""
