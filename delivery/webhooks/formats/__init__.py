"""Decode records whose values are in a format of a schema registry: Avro, Protobuf, JSON Schema.

In: a record in the Confluent wire format. Out: the record's event, with the payload as JSON. Runs in the executors, the
commands and the archive. During an outage of the schema registry, the driver uses it to ask if the schema registry answers.
"""
