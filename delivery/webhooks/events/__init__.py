"""Events in Kafka records.

In: a record's headers and value. Out: an `Event` with its attributes, and its order key. Runs in the executors, and in the API,
the archive and the commands where these publish, replay, check or explain events.
"""
