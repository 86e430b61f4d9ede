"""Start Spark, and run the direct, batch and retry lanes as streaming queries.

In: settings and the registry. Out: running queries. A query restarts when Spark must plan it anew (other executors, other
paused topics), and when Kafka answers again. All queries wait while our network is broken. Runs on the driver.
"""
