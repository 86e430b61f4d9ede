"""Publish events over HTTP: the events in the bodies of requests become records in Kafka.

In: the body of a `POST /v1/events`. Out: records that Kafka has confirmed, or a refusal of the request. If Kafka
refuses or does not confirm a record, Kafka may have some of the records. Runs in the API.
"""
