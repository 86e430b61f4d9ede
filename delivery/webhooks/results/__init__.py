"""The results of the lanes, and the Kafka records with these results.

In: outcomes, rejections and offset receipts of the lanes. Out: the records of four topics, as bytes. The types of
`log_records`, `dead_letter_records` and `rejected_records` write and read these bytes. docs/record-formats.md is generated from
them. Runs in the executors, on the driver, in the archive and in the commands.
"""
