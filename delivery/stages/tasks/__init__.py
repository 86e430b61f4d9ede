"""Define what the executors run for the lanes: functions for a partition's Arrow batches, and the processor of a shard's state.

In: Arrow batches, and the state of shards. Out: rows for shards, results written to Kafka, and counters for the driver.
Runs in the executors' Python workers. The driver creates the task functions.
"""
