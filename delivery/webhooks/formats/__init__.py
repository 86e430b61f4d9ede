"""Decode records whose values are in a format of a schema registry: Avro, Protobuf, JSON Schema.

In: a record whose value may be in the Confluent wire format. Out: the record's event, with the payload as JSON. Runs in the
executors, the commands and the archive. The driver uses `registry_client` to ask if the schema registry answers again. The API
uses `wire_format`.
"""
