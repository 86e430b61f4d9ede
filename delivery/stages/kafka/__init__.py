"""Read from and write to Kafka.

In: topics and offsets. Out: streaming frames, rows written to topics, lag, completed work of an interrupted micro-batch. Runs
on the driver. The sink runs in the executors, `completed_reader` also in the executors, `bounded_reader` also in the
executors and the commands, `source` and `topics` also in the commands, `lag` and `topics` also in `fanout archive`.
"""
