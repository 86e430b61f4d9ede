"""Start Spark, and run the direct, batch and retry lanes as streaming queries.

In: settings and the registry. Out: running queries. A query restarts with a new plan when the number of executors or the lane's
paused topics change. The query of the batch lane also restarts when a new snapshot of the registry is broadcast. A query that
ended because Kafka did not answer starts again when Kafka answers. All queries wait while our network is broken. Runs on the
driver; `session` also in the commands that use Spark.
"""
