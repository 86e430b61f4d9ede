"""The Spark application (`stages`) and the delivery core (`webhooks`). They turn Kafka records into signed requests."""
