"""Turn the results of the lanes into Kafka records, and read these records.

In: outcomes, rejections and offset receipts of the lanes. Out: records of the attempts, dead-letter, rejected and retries
topics. The types of `log_records`, `dead_letter_records` and `rejected_records` write and read the records.
docs/record-formats.md is generated from these types. Runs in the executors, on the driver, in the archive and in the commands.
"""
