"""Publishing over HTTP: events from the bodies of requests become records in Kafka.

In: the body of a `POST /v1/events`. Out: records that Kafka has confirmed, or a refusal of all of them. Runs in the API.
"""
