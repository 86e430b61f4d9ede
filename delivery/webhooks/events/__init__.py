"""Events in Kafka records.

In: a record's key, headers and value. Out: an `Event` with its attributes and its ordering key. Runs in the executors.
"""
