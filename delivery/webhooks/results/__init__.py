"""What comes of records: the results of the lanes, and the records of Kafka that tell of them.

In come outcomes, rejections and receipts of the lanes. Out go the records of four topics, as bytes. The types of `log_records`,
`dead_letter_records` and `rejected_records` both write and read these bytes; docs/record-formats.md is made from them. Runs in
the executors, on the driver and in the commands.
"""
