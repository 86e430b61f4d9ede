"""The Spark application and the delivery core: from a Kafka record to a signed request and its outcome."""
