"""Read events from Kafka records.

In: a Kafka record. Out: an `Event` with its attributes, and its order key. Runs in the executors, and in the API, the archive
and the commands where these publish, replay, check or explain events.
"""
