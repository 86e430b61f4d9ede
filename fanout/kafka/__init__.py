"""Read and write Kafka topics.

In: topics, and records to publish. Out: the records of topics up to their present ends; published records. Runs in `fanout`
commands and in `fanout archive`.
"""
