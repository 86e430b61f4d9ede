"""Values of records in the formats of a schema registry: Avro, Protobuf, JSON Schema.

In: a record in the Confluent wire format. Out: the event in it, with its payload as JSON. Runs in the executors, and in the
commands.
"""
