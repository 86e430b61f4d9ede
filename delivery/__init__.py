"""The Spark application (`stages`) and the delivery core (`webhooks`), which turn Kafka records into signed requests.

`config` has the settings of all processes, and `observability` their logs, metrics and health.
"""
