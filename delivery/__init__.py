"""The Spark application (`stages`) and the delivery core (`webhooks`), which turn Kafka records into signed requests.

In: event topics, the registry, settings. Out: requests to endpoints, and the topics of results. Runs on the driver and in the
executors. `config` has the settings of all processes, and `observability` their logs, metrics and health. The other modules
here, except `job`, define values, errors and secrets for every process.
"""
