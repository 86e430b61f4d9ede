"""Read from and write to Kafka.

In: topics and offsets. Out: streaming frames, rows written to topics, lag, completed work of an interrupted micro-batch. Runs
on the driver, except the sink, which runs in the executors. Also in the executors: `completed_reader`, `bounded_reader`. Also
in the commands: `bounded_reader`, `source`, `topics`. Also in `fanout archive`: `lag`, `topics`.
"""
