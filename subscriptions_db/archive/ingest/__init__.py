"""Write the archive.

In: records of the attempts and dead-letter topics. Out: rows in partitions by day, each exactly once, and hourly statistics.
Runs in `fanout archive`. hourly_counts.py also runs in the API and in `fanout` commands, which read statistics. The API also
reads attempts, as the rows that archived_rows.py defines.
"""
