"""Define what the executors run for the lanes: the functions of tasks, and the processor of a shard's state.

In: Arrow batches, offset ranges, and the state of shards. Out: rows for shards, results written to Kafka, and counters for the
driver. Runs in the executors' Python workers. The driver creates the task functions.
"""
