"""Keep the state of the retry lane: the retry entries that wait, and those that are leased to workers now.

In: retry messages and a shard's state. Out: leases of retry entries to attempt or to end now, and the new state. Pure, except
that `health_hints` draws random numbers. Runs in the executors. A shard is one key of Spark's state: it has the retry entries
of a fixed part of all endpoints. The archive and the commands also use `retry_messages` and `retry_records`, to write and read
records of the retries topic. The driver reads such records, and makes the settings of `window` and `health_hints`.
"""
