"""Read from and write to Kafka.

In: topics and offsets. Out: streaming frames, records of offset ranges, rows written to topics, lag, completed work of an
interrupted micro-batch. Runs on the driver, except `record_reader`, `sink` and `event_writer`, which run in the executors. Also
in the executors: `completed_reader`, `bounded_reader`, `offset_ranges`, `offset_requests`. Also in the commands:
`bounded_reader`, `offset_requests`, `record_reader`, `topic_source`, `topics`. Also in `fanout archive`: `bounded_reader`,
`lag`, `offset_requests`, `record_reader`, `topics`.
"""
