"""Start Spark, and run the direct, batch and retry lanes as streaming queries.

In: settings and the registry. Out: running queries. A query restarts with a new plan when the executors, the broadcast snapshot
or the paused topics change. It also restarts when Kafka answers again. All queries wait while our network is broken. Runs on
the driver.
"""
