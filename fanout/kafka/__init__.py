"""Read and write Kafka topics.

In: topics, and records to publish. Out: the records of topics up to their present ends; published records. Runs in `fanout`
commands, in `fanout archive` and in the load tests.
"""
