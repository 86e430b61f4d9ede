"""Values of records in the formats of a schema registry: Avro, Protobuf, JSON Schema.

In: a record in the Confluent wire format. Out: the event in it, with its payload as JSON. Runs in the executors, and in the
commands (also the archive). The driver asks the schema registry during an outage whether it answers again.
"""
