"""Run the real-time lane, which delivers the topics of `source.realtime_pattern` (docs/adr/0040).

The lane runs under Spark's real-time trigger, and in micro-batches while it catches up. In: records of these topics. Out:
results written to Kafka, and reports of the tasks to the driver. Runs on the driver and in the executors' Python workers.
"""
