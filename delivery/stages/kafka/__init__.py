"""Read from and write to Kafka.

In: topics and offsets. Out: streaming frames, rows written to topics, lag. Runs on the driver; the sink runs in the executors.
"""
