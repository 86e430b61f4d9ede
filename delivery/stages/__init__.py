"""Run the lanes in Spark, and control Spark. docs/architecture.md shows the steps of the lanes as a picture.

In: event topics, the registry, the retries topic. Out: micro-batches, which the delivery core (delivery.webhooks) handles, and
the topics of results. Runs on the driver; some modules also run in `fanout archive` and in `fanout` commands. `tasks` runs in
the executors, and so do some modules of `kafka`, `realtime` and `registry`. Of the modules here, `worker_daemon` and
`pyspark_path` start the executors' Python workers, and `process_state` runs on the driver and in executors.
"""
