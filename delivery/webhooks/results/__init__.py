"""Turn the results of the lanes into Kafka records, and read these records.

In: outcomes, rejections and offset receipts (records of handled offsets) of the lanes. Out: records of the attempts,
dead-letter, rejected and retries topics, log lines of attempts, and counters. `log_records`, `dead_letter_records` and
`rejected_records` write and read the records of the attempts, dead-letter and rejected topics. `delivery.webhooks.retries`
writes and reads the records of the retries topic. docs/record-formats.md is generated from the types in these modules and from
`batching.segment`. Runs in the executors, on the driver, in the archive and in the commands.
"""
