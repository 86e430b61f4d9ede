"""Read and write Kafka topics, for the commands.

In: topics and events. Out: the records of topics up to now; published events.
"""
